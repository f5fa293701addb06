"""The session: our defaults, all of them overridable, and nothing on the terminal."""

from typing import Any

from pg_pipeline.spark.session import cores, spark_config


def test_every_default_can_be_overridden() -> None:
    for key in spark_config():
        assert spark_config({key: "mine"})[key] == "mine"


def test_a_cluster_needs_only_its_master() -> None:
    config = spark_config({"spark.master": "spark://host:7077", "spark.ui.enabled": True})
    assert config["spark.master"] == "spark://host:7077"
    assert config["spark.ui.enabled"] == "true"
    assert "spark.driver.bindAddress" not in config


def test_shuffles_have_as_many_partitions_as_cores() -> None:
    assert [cores(master) for master in ("local", "local[3]", "local[2,4]")] == [1, 3, 2]
    assert cores("local[*]") >= 1
    assert spark_config(master="local[3]")["spark.sql.shuffle.partitions"] == "3"


def test_a_session_says_nothing_of_its_own(child: Any) -> None:
    """Not even when a query fails. What Java itself prints at start is not Spark's to silence."""
    code = (
        "from pg_pipeline.embedded.java import ensure_java; ensure_java()\n"
        "from pg_pipeline.spark.session import session\n"
        "spark = session(master='local[1]')\n"
        "try: spark.sql(\"select cast('x' as int)\").collect()\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(spark.range(3).count())\n"
    )
    process = child(code)
    assert process.wait() == 0, process.stderr
    assert process.stdout.split() == ["NumberFormatException", "3"]
    assert [line for line in process.stderr.splitlines() if not line.startswith("WARNING: Using incubator")] == []
