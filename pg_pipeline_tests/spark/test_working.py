"""What happens around the rows: plans that Spark runs twice, cancelling, progress, several batches at once, memory."""

import gzip
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import functions as f

from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.batches import batches_at_once, bounded, memory_left
from pg_pipeline.spark.errors import BatchCancelled
from pg_pipeline.spark.process import cancel, process_batch
from pg_pipeline.spark.progress import Progress
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.spark_reader import trusted
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.spark.landing import attempt, commit, land, lines

SCHEMA = "id long, name string"
FILES: dict[str, Any] = {f"{n}.json": [{"id": n * 10 + i, "name": "x"} for i in range(5)] for n in range(4)}
FILES["bad.json"] = b"{\n"

TRANSFORMS: dict[str, tuple[Any, int]] = {
    "sorts": (lambda df, _: df.orderBy("name", "id"), 20),
    "aggregates": (lambda df, _: df.groupBy("name").agg(f.sum("id").alias("total"), f.count("*").alias("n")), 1),
    "limits": (lambda df, _: df.limit(1), 1),
    "joins itself": (lambda df, _: df.alias("a").join(df.alias("b"), "id").select("id", "a.name"), 20),
    "counts first": (lambda df, _: df.withColumn("n", f.lit(df.count())), 20),
    "asks whether it is empty": (lambda df, _: df.withColumn("empty", f.lit(df.isEmpty())), 20),
    "caches": (lambda df, _: df.cache(), 20),
    "uses no column": (lambda df, _: df.select(f.lit(1).alias("one")), 20),
    "keeps nothing": (lambda df, _: df.where("false"), 0),
    "repeats rows": (lambda df, _: df.withColumn("k", f.explode(f.array(f.lit(1), f.lit(2)))), 40),
}


@pytest.mark.parametrize("reader", ["arrow", "spark"])
@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_rows_are_counted_once_whatever_the_transform_does(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, name: str, reader: Any
) -> None:
    transform, rows_out = TRANSFORMS[name]
    recipe = Recipe("json", SCHEMA, reader=reader, transform=transform)
    done = commit(spark, recipe, land(tmp_path, FILES), attempt(), PostgresTable("t"), dsn)
    assert [(o.state, o.rows_in) for o in done.result.files] == [("committed", 5)] * 4 + [("quarantined", 0)]
    assert done.result.rows_out == rows_out
    assert conn.execute("select count(*) from t").fetchone() == (rows_out,)
    if name == "aggregates":
        assert conn.execute("select total, n from t").fetchone() == (340, 20)


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_rows_that_spark_reads_twice_are_counted_once(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, reader: Any
) -> None:
    """A sort of several partitions reads everything once to sample it and once more to sort it."""
    files = land(tmp_path, {f"{n}.json": [{"id": n * 100 + i} for i in range(50)] for n in range(6)})
    recipe = Recipe("json", SCHEMA, reader=reader, transform=lambda df, _: df.orderBy(f.rand(1)))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "500")
    try:
        done = commit(spark, recipe, files, attempt(), PostgresTable("t"), dsn)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert [o.rows_in for o in done.result.files] == [50] * 6
    assert conn.execute("select count(*) from t").fetchone() == (300,)


OBSERVED: dict[str, Any] = {
    "rows": [{"x": 10.0, "y": 3.0}, {"x": 9.9999999, "y": 2.0}, {"x": 20.0000001, "y": 4.0}],
    "bad": [{"x": 20.0, "y": 1.0}],
    "drifted": None,
    "rescued": None,
    "totals": [9, 1, 0, 0],
    "evaluations": 2,
    "partitions": [0, 1],
}


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({}, {"a": 5, "b": 4}),
        ({"evaluations": 3}, None),
        ({"totals": [10, 1, 0, 0]}, None),
        ({"totals": [9, 2, 0, 0]}, None),
        ({"rows": [{"x": 15.0, "y": 9.0}]}, None),
    ],
    ids=["as it was", "a part was read twice", "rows are lost", "bad rows are lost", "two files in one bin"],
)
def test_counts_are_trusted_only_when_they_add_up(change: dict[str, Any], rows: dict[str, int] | None) -> None:
    tally = trusted({**OBSERVED, **change}, {10: "a", 20: "b"})
    assert (tally.rows if tally else None) == rows


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_csv_rows_are_judged_also_in_columns_that_the_transform_leaves_out(
    spark: Any, dsn: str, tmp_path: Path, reader: Any
) -> None:
    files = land(tmp_path, {"a.csv": b"id,name\n1,x\n", "b.csv": b"id,name\nno,x\n"})
    recipe = Recipe("csv", SCHEMA, reader=reader, transform=lambda df, _: df.select("name", "_file"))
    done = commit(spark, recipe, files, attempt(), PostgresTable("t"), dsn)
    assert [o.reason for o in done.result.files] == [None, "bad_lines"]


def test_provenance_can_be_left_out_and_is_counted_all_the_same(
    spark: Any, dsn: str, conn: Any, tmp_path: Path
) -> None:
    recipe = Recipe("json", SCHEMA, provenance=False)
    done = commit(spark, recipe, land(tmp_path, FILES), attempt(), PostgresTable("t"), dsn)
    assert [o.rows_out for o in done.result.files] == [5, 5, 5, 5, 0]
    names = [c.name for c in conn.execute("select * from t").description]
    assert names == ["id", "name", "_execution", "_batch"]


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_a_cancelled_attempt_stops_within_seconds_and_leaves_nothing(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, reader: Any
) -> None:
    """The transform holds every row for as long as a file exists."""
    hold = tmp_path / "hold"
    hold.touch()

    def slow(batches: Any) -> Any:
        import time

        for batch in batches:
            while hold.exists():
                time.sleep(0.05)
            yield batch

    recipe = Recipe("json", SCHEMA, reader=reader, transform=lambda df, _: df.mapInArrow(slow, df.schema))
    files = land(tmp_path / "landing", FILES)
    ref = attempt()
    caught: list[BaseException] = []

    def work() -> None:
        try:
            process_batch(spark, recipe, files, ref, PostgresTable("t"), dsn)
        except BatchCancelled as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    tracker = spark.sparkContext.statusTracker()
    wait_until(
        lambda: tracker.getActiveJobsIds() and tracker.getJobIdsForGroup(str(ref.token)), what="the job to start"
    )
    cancel(spark, ref.token)
    thread.join(timeout=20)
    still = thread.is_alive()
    hold.unlink()
    thread.join()
    assert not still, "the job went on after it was cancelled"
    assert len(caught) == 1


def test_an_attempt_cancelled_before_its_job_starts_does_not_start_it(spark: Any, dsn: str, tmp_path: Path) -> None:
    ref = attempt()
    cancel(spark, ref.token)
    with pytest.raises(BatchCancelled):
        process_batch(spark, Recipe("json", SCHEMA), land(tmp_path, FILES), ref, PostgresTable("t"), dsn)


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_progress_ends_with_everything_done(spark: Any, dsn: str, tmp_path: Path, reader: Any) -> None:
    seen: list[Progress] = []
    files = land(tmp_path, FILES)
    recipe = Recipe("json", SCHEMA, reader=reader)
    process_batch(spark, recipe, files, attempt(), PostgresTable("t"), dsn, on_progress=seen.append)
    last = seen[-1]
    assert (last.files_done, last.files, last.rows) == (5, 5, 20)
    assert last.bytes_done == last.bytes == sum(file.size for file in files)
    assert last.tasks_done == last.tasks > 0


@pytest.mark.parametrize(
    ("slots", "memory", "heap", "batches"),
    [
        (1, 64, 64, 1),
        (2, 64, 64, 2),
        (8, 64, 64, 5),
        (64, 64, 64, 8),
        (8, 3, 64, 3),
        (8, 0, 64, 1),
        (8, 64, 1, 2),
    ],
    ids=["one core", "two cores", "eight cores", "many cores", "little memory", "no memory", "a small driver"],
)
def test_how_many_batches_at_once_follows_from_cores_and_memory(
    slots: int, memory: int, heap: int, batches: int
) -> None:
    assert bounded(slots, memory << 30, heap << 30) == batches


def test_a_container_has_the_memory_that_it_is_given(tmp_path: Path) -> None:
    for name, text in (("memory.max", f"{3 << 20}\n"), ("memory.current", f"{1 << 20}\n")):
        (tmp_path / name).write_text(text)
    assert memory_left(tmp_path) == 2 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_left(tmp_path) > 2 << 20


def test_the_session_says_how_many_it_has_room_for(spark: Any) -> None:
    assert batches_at_once(spark) == 2
    assert batches_at_once(None) >= 1


@pytest.mark.parametrize("reader", ["arrow", "spark"])
@pytest.mark.parametrize(("bad", "jobs"), [(0, 1), (1, 3), (10, 3)])
def test_counting_costs_no_job_and_finding_bad_files_no_job_for_each(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, reader: Any, bad: int, jobs: int
) -> None:
    """Rows are counted, and Arrow finds bad files, as they pass; Spark's reader needs one job to find them all."""
    good = gzip.compress(lines([{"id": i} for i in range(2000)]))
    files = land(tmp_path, {f"{n}.json.gz": good[: len(good) // 2] if n < bad else good for n in range(20)})
    ref = attempt()
    done = commit(spark, Recipe("json", SCHEMA, reader=reader), files, ref, PostgresTable("t"), dsn)
    assert [o.reason for o in done.result.files] == ["corrupt"] * bad + [None] * (20 - bad)
    assert done.result.rows_in == 2000 * (20 - bad)
    ran = len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(ref.token)))
    assert ran == (1 if reader == "arrow" else jobs)


def test_memory_stays_flat_over_many_batches(spark: Any, dsn: str, tmp_path: Path) -> None:
    files = land(tmp_path, {f"{n}.json": [{"id": i, "name": "x" * 100} for i in range(500)] for n in range(4)})
    process = psutil.Process(os.getpid())
    sizes = []
    for round_ in range(26):
        process_batch(spark, Recipe("json", SCHEMA), files, attempt(round_), PostgresTable("t"), dsn)
        if round_ >= 6:
            sizes.append(process.memory_info().rss)
    grown = max(sizes[-5:]) - max(sizes[:5])
    assert grown < 20 << 20, f"{grown >> 20} MB more after 15 batches of 0.2 MB"


@pytest.mark.long
@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_memory_stays_flat_over_hundreds_of_batches(spark: Any, dsn: str, tmp_path: Path, reader: Any) -> None:
    """Of this process and, once its garbage is collected, of Java."""
    files = land(tmp_path, {f"{n}.json": [{"id": i, "name": "x" * 100} for i in range(500)] for n in range(4)})
    process = psutil.Process(os.getpid())
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()

    def used() -> tuple[int, int]:
        for _ in range(3):
            runtime.gc()
        return process.memory_info().rss, runtime.totalMemory() - runtime.freeMemory()

    sizes = []
    for round_ in range(300):
        recipe = Recipe("json", SCHEMA, reader=reader)
        process_batch(spark, recipe, files, attempt(round_), PostgresTable("t"), dsn, on_progress=lambda _: None)
        if round_ % 100 == 99:
            sizes.append(used())
    python, java = (after - before for before, after in zip(sizes[0], sizes[-1], strict=True))
    assert python < 20 << 20, f"Python has {python >> 20} MB more after 200 batches of 0.2 MB"
    assert java < 20 << 20, f"Java has {java >> 20} MB more after 200 batches of 0.2 MB"
