"""A Java that starts in half the time, for tests only: compiled lightly, with Spark's classes from an archive.

`python -m pg_pipeline_tests.quick_java` makes the archive; a Java that does not fit it starts without.
"""

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
LIGHTLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Java tells on stdout what it could not put into an archive, or take out of one.
QUIETLY = "-Xlog:disable"


def use() -> None:
    """For every Spark driver that this process and its children start from now on."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else ""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{LIGHTLY} {QUIETLY}{archive}")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LIGHTLY)


def make() -> None:
    """Start Spark, use what tests use of it, and keep the classes that this took."""
    from pyspark import SparkContext

    from pg_pipeline.embedded.java import ensure_java
    from pg_pipeline.errors import JavaNotFound
    from pg_pipeline.spark.session import session

    try:
        ensure_java()
    except JavaNotFound:
        return  # the tests say so themselves
    fresh = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{LIGHTLY} {QUIETLY} -XX:ArchiveClassesAtExit={fresh}"
    spark = session(master="local[2]")
    with tempfile.TemporaryDirectory(prefix="pgp-") as folder:
        rows = spark.range(0, 100, 1, 2).selectExpr("id", "string(id) name", "timestamp_seconds(id) at")
        for kind in ("json", "csv", "parquet"):
            rows.write.format(kind).save(f"{folder}/{kind}")
            read = spark.read.format(kind).schema("id long, name string, at timestamp").load(f"{folder}/{kind}")
            read.where("id > 3").orderBy("id").mapInArrow(lambda batches: batches, read.schema).toArrow()
            read.groupBy("name").count().join(read, "name").collect()
        text = spark.read.text(f"{folder}/json").selectExpr("from_json(value, 'id long') row", "_metadata.file_path")
        text.groupBy("file_path").count().toPandas()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    java = gateway.proc  # type: ignore[attr-defined]
    java.stdin.close()
    java.wait()
    if fresh.exists():
        fresh.replace(ARCHIVE)


if __name__ == "__main__":
    make()
