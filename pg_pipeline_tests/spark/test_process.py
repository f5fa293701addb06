"""A batch from files to visible rows, with real Spark and real Postgres."""

from pathlib import Path
from typing import Any

import pytest

from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.errors import BadFiles, TransformFailed
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline_tests.spark.landing import attempt, land, publish

SCHEMA = "id long, name string"


def test_a_batch_becomes_visible_rows_with_counts_per_file(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    files = land(tmp_path, {"a.json": [{"id": 1, "name": "ä"}, {"id": 2}], "b.json": [{"id": 3, "name": "c"}]})
    sink = PostgresTable("landing.orders")
    ref = attempt()
    done = process_batch(spark, Recipe("json", SCHEMA), files, ref, sink, dsn)
    assert conn.execute("select count(*) from landing.orders").fetchone() == (0,), "staged rows are not visible"
    assert publish(dsn, sink, done, ref) == 3
    rows = conn.execute("select id, name, _file, _execution, _batch from landing.orders order by id").fetchall()
    assert rows == [
        (1, "ä", files[0].path, "20261118-a1b2", 0),
        (2, None, files[0].path, "20261118-a1b2", 0),
        (3, "c", files[1].path, "20261118-a1b2", 0),
    ]
    assert [(f.state, f.rows_in, f.rows_out) for f in done.result.files] == [("committed", 2, 2), ("committed", 1, 1)]
    assert (done.result.rows_in, done.result.rows_out, done.result.rows_rescued) == (3, 3, 0)


def test_a_rerun_replaces_the_rows_of_its_batch_and_no_others(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    sink = PostgresTable("orders")
    for batch, rows in ((0, [{"id": 1}, {"id": 2}]), (1, [{"id": 3}])):
        files = land(tmp_path, {"a.json": rows})
        ref = attempt(batch)
        publish(dsn, sink, process_batch(spark, Recipe("json", SCHEMA), files, ref, sink, dsn), ref)
    again = attempt(0, generation=2)
    done = process_batch(spark, Recipe("json", SCHEMA), land(tmp_path, {"a.json": [{"id": 9}]}), again, sink, dsn)
    publish(dsn, sink, done, again)
    assert conn.execute("select id, _batch from orders order by id").fetchall() == [(3, 1), (9, 0)]


def test_a_bad_file_is_set_aside_and_the_others_go_through(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    files = land(tmp_path, {"a.json": [{"id": 1}], "b.json.gz": b"not gzip", "c.json": [{"id": 3}]})
    sink, ref = PostgresTable("orders"), attempt()
    done = process_batch(spark, Recipe("json", SCHEMA), files, ref, sink, dsn)
    publish(dsn, sink, done, ref)
    assert conn.execute("select id from orders order by id").fetchall() == [(1,), (3,)]
    assert [(f.state, f.reason) for f in done.result.files] == [
        ("committed", None),
        ("quarantined", "wrong_format"),
        ("committed", None),
    ]


def test_bad_files_fail_the_batch_when_the_pipeline_says_so(spark: Any, dsn: str, tmp_path: Path) -> None:
    files = land(tmp_path, {"a.json": [{"id": 1}], "b.json": b""})
    with pytest.raises(BadFiles, match=r"b\.json.*empty"):
        process_batch(spark, Recipe("json", SCHEMA, bad_files="fail"), files, attempt(), PostgresTable("orders"), dsn)


def test_a_transform_that_raises_is_not_the_files_fault(spark: Any, dsn: str, tmp_path: Path) -> None:
    def broken(df: Any, _batch: Any) -> Any:
        return df.select(unknown_function_of_mine(df))  # type: ignore[name-defined]  # noqa: F821

    files = land(tmp_path, {"a.json": [{"id": 1}]})
    with pytest.raises(TransformFailed) as caught:
        process_batch(spark, Recipe("json", SCHEMA, transform=broken), files, attempt(), PostgresTable("orders"), dsn)
    text = str(caught.value)
    assert text.startswith("Traceback")
    assert "in broken" in text.splitlines()[1], "the user's own line comes first"


def test_a_udf_that_raises_on_an_executor_is_the_transforms_fault(spark: Any, dsn: str, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    def transform(df: Any, _batch: Any) -> Any:
        return df.withColumn("x", f.udf(lambda i: 1 // (i - i), "long")("id"))

    files = land(tmp_path, {"a.json": [{"id": 1}]})
    with pytest.raises(TransformFailed, match="ZeroDivisionError"):
        process_batch(spark, Recipe("json", SCHEMA, transform=transform), files, attempt(), PostgresTable("t"), dsn)


def test_an_expression_that_fails_is_the_transforms_fault(spark: Any, dsn: str, tmp_path: Path) -> None:
    files = land(tmp_path, {"a.json": [{"id": 1, "name": "x"}]})
    recipe = Recipe("json", SCHEMA, transform=lambda df, _: df.selectExpr("cast(name as int) as n"))
    with pytest.raises(TransformFailed, match="CAST_INVALID_INPUT"):
        process_batch(spark, recipe, files, attempt(), PostgresTable("t"), dsn)
