"""Spark's own faults: tasks that fail half way through their rows. Never a duplicate row in a sink."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline_tests.spark.landing import attempt, land, publish

FILES: dict[str, Any] = {f"{n}.json": [{"id": n * 100 + i} for i in range(30)] for n in range(2)}
IDS = sorted(row["id"] for rows in FILES.values() for row in rows)
LIMIT = 3  # of the session that the tests share: local[2,3]


def failing(times: int) -> Callable[[Any, Any], Any]:
    """A transform whose tasks give some rows and then fail, so many times each."""

    def some_then_fail(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for table in batches:
            yield table.slice(0, 1)
            if context.attemptNumber() < times:
                raise RuntimeError("half way")
            yield table.slice(1)

    return lambda df, _batch: df.mapInArrow(some_then_fail, df.schema)


def sink_of(kind: str, folder: Path) -> Any:
    if kind == "parquet":
        return ParquetDataset(str(folder / "dataset"))
    return PostgresTable("t", inline_bytes=0 if kind == "executors" else 1 << 20)


def shown(spark: Any, dsn: str, sink: Any) -> list[int]:
    with psycopg.connect(dsn) as conn:
        if isinstance(sink, ParquetDataset):
            return sorted(row.id for row in sink.read(spark, conn).collect())
        return sorted(row[0] for row in conn.execute("select id from t"))


@pytest.mark.parametrize("kind", ["driver", "executors", "parquet"])
def test_p2_tasks_that_fail_half_way_and_are_tried_again_show_each_row_once(
    spark: Any, dsn: str, tmp_path: Path, kind: str
) -> None:
    sink, ref = sink_of(kind, tmp_path), attempt()
    recipe = Recipe("json", "id long", transform=failing(LIMIT - 1))
    done = process_batch(spark, recipe, land(tmp_path / "in", FILES), ref, sink, dsn)
    publish(dsn, sink, done, ref)
    assert shown(spark, dsn, sink) == IDS
    assert done.result.rows_out == len(IDS)


@pytest.mark.parametrize("kind", ["driver", "executors", "parquet"])
def test_p2_a_task_that_fails_three_times_fails_the_attempt_and_the_next_one_shows_each_row_once(
    spark: Any, dsn: str, tmp_path: Path, kind: str
) -> None:
    sink, files = sink_of(kind, tmp_path), land(tmp_path / "in", FILES)
    with pytest.raises(Exception, match="half way"):
        process_batch(spark, Recipe("json", "id long", transform=failing(LIMIT)), files, attempt(), sink, dsn)
    ref = attempt()
    done = process_batch(spark, Recipe("json", "id long", transform=failing(0)), files, ref, sink, dsn)
    publish(dsn, sink, done, ref)
    assert shown(spark, dsn, sink) == IDS
