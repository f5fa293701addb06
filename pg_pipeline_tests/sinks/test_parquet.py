"""The Parquet sink beyond the common suite: what readers get, what is on disk, and what may be removed."""

import os
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from pg_pipeline.coordination.types import AttemptRef
from pg_pipeline.sinks.errors import SinkSchemaMismatch, StagedRowsMissing
from pg_pipeline.sinks.parquet import ParquetDataset, WriteTask


def attempt(batch: int = 0) -> AttemptRef:
    return AttemptRef("events", "20261118-a1b2", 1, batch, uuid.uuid4())


def write(sink: ParquetDataset, df: Any, dsn: str, batch: int = 0) -> AttemptRef:
    ref = attempt(batch)
    with psycopg.connect(dsn) as conn:
        sink.prepare(conn, df.schema)
        sink.publish(conn, sink.stage(df, ref, dsn), ref)
    return ref


def on_disk(sink: ParquetDataset) -> set[str]:
    return {str(path) for path in Path(sink.path).rglob("*.parquet")}


def test_readers_get_exactly_the_committed_files(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    sink = ParquetDataset(str(tmp_path / "d"))
    write(sink, spark.range(0, 10, 1, 2), dsn, 0)
    sink.stage(spark.range(100, 110), attempt(1), dsn)
    files = sink.files(conn)
    assert set(files) < on_disk(sink)
    assert sorted(n for file in files for n in pq.read_table(file)["id"].to_pylist()) == list(range(10))
    assert sink.read(spark, conn).count() == 10


@pytest.mark.parametrize("harm", [os.unlink, lambda path: os.truncate(path, 10)], ids=["gone", "cut"])
def test_files_that_are_not_as_reported_are_not_published(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, harm: Any
) -> None:
    sink, ref = ParquetDataset(str(tmp_path / "d")), attempt()
    sink.prepare(conn, spark.range(1).schema)
    staged = sink.stage(spark.range(0, 10, 1, 1), ref, dsn)
    harm(next(iter(on_disk(sink))))
    with pytest.raises(StagedRowsMissing), psycopg.connect(dsn) as finish:
        sink.publish(finish, staged, ref)
    assert sink.files(conn) == []


def test_discard_removes_an_attempts_files_and_vacuum_what_was_replaced(
    spark: Any, dsn: str, conn: Any, tmp_path: Path
) -> None:
    sink = ParquetDataset(str(tmp_path / "d"))
    write(sink, spark.range(0, 5, 1, 1), dsn)
    write(sink, spark.range(5, 9, 1, 1), dsn)
    dead = attempt(1)
    sink.stage(spark.range(1), dead, dsn)
    sink.discard(conn, dead)
    assert len(on_disk(sink)) == 2, "the published file, and the one it replaced"
    assert sink.vacuum(conn) == [], "a reader may still have the list with the old one"
    assert len(sink.vacuum(conn, older_than=-1)) == 1
    assert on_disk(sink) == set(sink.files(conn))


def test_columns_may_be_added_only_when_allowed_and_never_changed(
    spark: Any, dsn: str, conn: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "d")
    write(ParquetDataset(path), spark.range(1), dsn, 0)
    wider = spark.range(1).selectExpr("id", "'x' as name")
    with pytest.raises(SinkSchemaMismatch, match="name"):
        write(ParquetDataset(path), wider, dsn, 1)
    write(ParquetDataset(path, evolve=True), wider, dsn, 1)
    rows = ParquetDataset(path).read(spark, conn).collect()
    assert sorted((row.id, row.name or "") for row in rows) == [(0, ""), (0, "x")]
    with pytest.raises(SinkSchemaMismatch, match="id"):
        write(ParquetDataset(path, evolve=True), spark.range(1).selectExpr("cast(id as int) id", "'x' name"), dsn)


def test_nothing_written_yet_says_so(spark: Any, conn: Any, tmp_path: Path) -> None:
    with pytest.raises(SinkSchemaMismatch, match="Nothing was ever written"):
        ParquetDataset(str(tmp_path / "d")).read(spark, conn)


def test_rows_say_which_execution_and_batch_they_came_with(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    sink = ParquetDataset(str(tmp_path / "d"))
    for batch in range(2):
        write(sink, spark.range(batch, batch + 1, 1, 1), dsn, batch)
    rows = sink.read(spark, conn).collect()
    assert sorted((row.id, row._execution, row._batch) for row in rows) == [
        (0, "20261118-a1b2", 0),
        (1, "20261118-a1b2", 1),
    ]


def test_any_reader_takes_the_list_of_files(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    import pandas as pd
    import polars as pl

    sink = ParquetDataset(str(tmp_path / "d"))
    write(sink, spark.range(0, 10, 1, 2), dsn)
    sink.stage(spark.range(100, 110), attempt(1), dsn)
    files = sink.files(conn)
    assert sorted(pl.read_parquet(files)["id"].to_list()) == list(range(10))
    assert sorted(pd.concat(map(pd.read_parquet, files))["id"]) == list(range(10))


def test_a_file_and_the_folders_that_lead_to_it_are_on_disk_before_it_is_reported(
    tmp_path: Path, monkeypatch: Any
) -> None:
    synced = set()
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(TaskContext, "get", lambda: TaskContext)
    monkeypatch.setattr(TaskContext, "partitionId", lambda: 0)
    monkeypatch.setattr(TaskContext, "taskAttemptId", lambda: 7)
    task = WriteTask(str(tmp_path / "d"), "e/000000/token", "zstd", "e", 0)
    (report,) = task(iter([pa.RecordBatch.from_pydict({"id": [1, 2]})]))
    (path,) = report.column("path").to_pylist()
    file = tmp_path / "d" / path
    assert {str(place) for place in [file, *list(file.parents)[:4]]} <= synced
    assert report.column("bytes").to_pylist() == [file.stat().st_size]
