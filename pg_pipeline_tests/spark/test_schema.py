"""A schema is inferred once, and what does not fit it is a visible decision."""

from pathlib import Path
from typing import Any

import pytest

from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.errors import RecipeError, SchemaDrift
from pg_pipeline.spark.infer import infer_schema
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline_tests.spark.landing import attempt, commit, land, lines
from pg_pipeline_tests.spark.test_bad_files import csv, parquet


def test_a_schema_is_inferred_from_good_files_and_pinned(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    files = land(
        tmp_path, {"a.json": b"", "b.json": [{"id": 1, "at": {"x": 1.5}}], "c.json": [{"id": 2, "tags": ["t"]}]}
    )
    recipe = Recipe("json")
    with pytest.raises(RecipeError, match="no schema"):
        process_batch(spark, recipe, files, attempt(), PostgresTable("t"), dsn)
    found = infer_schema(spark, recipe, files)
    assert found.simpleString() == "struct<at:struct<x:double>,id:bigint,tags:array<string>>"
    done = commit(spark, recipe.pinned(found), files, attempt(), PostgresTable("t"), dsn)
    assert done.result.rows_out == 2
    assert conn.execute("select at, id, tags from t order by id").fetchall() == [
        ({"x": 1.5}, 1, None),
        (None, 2, ["t"]),
    ]


def test_csv_and_parquet_schemas_are_inferred_too(spark: Any, tmp_path: Path) -> None:
    files = land(
        tmp_path, {"a.csv": csv("id,at,name", "1,2026-01-01 00:00:00,x"), "b.csv": csv("id,at,name", "2.5,,y")}
    )
    assert infer_schema(spark, Recipe("csv"), files).simpleString() == "struct<id:double,at:timestamp,name:string>"
    files = land(tmp_path, {"bad.parquet": b"no", "a.parquet": parquet(id=[1], name=["x"])})
    assert infer_schema(spark, Recipe("parquet"), files).simpleString() == "struct<id:bigint,name:string>"


def test_nothing_readable_gives_no_schema(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="give the pipeline a schema"):
        infer_schema(spark, Recipe("json"), land(tmp_path, {"a.json": b"", "b.json.gz": b"x"}))


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_drift_fails_the_batch_when_the_pipeline_says_so(spark: Any, dsn: str, tmp_path: Path, reader: Any) -> None:
    recipe = Recipe("json", "id long", reader=reader, drift="fail")
    files = land(tmp_path, {"a.json": [{"id": 1}], "b.json": [{"id": 2, "price": 3}]})
    with pytest.raises(SchemaDrift, match=r"b\.json"):
        process_batch(spark, recipe, files, attempt(), PostgresTable("t"), dsn)


RESCUE: dict[str, tuple[bytes, list[tuple[Any, ...]]]] = {
    "json": (
        lines([{"id": 1, "name": "a"}, {"id": 2, "price": 3.5, "city": "Köln"}, {"id": "x", "name": "c"}]),
        [(1, "a", None), (2, None, {"price": "3.5", "city": "Köln"}), (None, "c", {"id": "x"})],
    ),
    "csv": (
        csv("id,price,name", "1,,a", "2,3.5,", "x,,c"),
        [(1, "a", None), (2, None, {"price": "3.5"}), (None, "c", {"id": "x"})],
    ),
    "parquet": (
        parquet(id=[1, 2], name=["a", None], price=[None, 3.5]),
        [(1, "a", None), (2, None, {"price": 3.5})],
    ),
}


@pytest.mark.parametrize("reader", ["arrow", "spark"])
@pytest.mark.parametrize("file_format", list(RESCUE))
def test_what_does_not_fit_the_schema_is_rescued_and_counted(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, file_format: Any, reader: Any
) -> None:
    content, expected = RESCUE[file_format]
    files = land(tmp_path, {f"a.{file_format}": content})
    recipe = Recipe(file_format, "id long, name string", reader=reader, drift="rescue")
    done = commit(spark, recipe, files, attempt(), PostgresTable("t"), dsn)
    rows = conn.execute("select id, name, _rescued_data::jsonb from t order by id, name").fetchall()
    assert rows == expected
    rescued = sum(1 for row in expected if row[2] is not None)
    assert done.result.files[0].rows_rescued == done.result.rows_rescued == rescued


@pytest.mark.parametrize(
    ("fields", "message"),
    [("id long, _file string", "reserved"), ("id lonk", "not valid DDL")],
)
def test_a_schema_that_cannot_be_is_refused(spark: Any, fields: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe("json", fields).struct()
