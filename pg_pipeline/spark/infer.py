"""A schema from a sample, made once and then pinned: later files are held against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.spark.arrow_parquet import check_magic
from pg_pipeline.spark.errors import RecipeError
from pg_pipeline.spark.files import BadFile, check_text, open_raw, open_text, verdicts
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FILES, BYTES = 10, 1 << 20


def infer_schema(spark: SparkSession, recipe: Recipe, files: Sequence[BatchFile]) -> StructType:
    """The schema of the first rows of up to ten files, spread over the list; bad ones are passed over.

    Pin its `json()` for the pipeline, and use `recipe.pinned(StructType.fromJson(...))` from then on.
    """
    from pyspark.sql.types import StructField, StructType

    sample = [file.path for file in files[:: max(1, len(files) // FILES)][:FILES]]
    schema = _of_parquet(sample, recipe.storage) if recipe.format == "parquet" else _of_text(spark, recipe, sample)
    fields = [StructField(f.name, f.dataType, True) for f in schema.fields if f.name != "_corrupt_record"]
    if not fields:
        raise RecipeError(
            f"No schema can be inferred from {len(files)} files, of which {len(sample)} were looked at and none is "
            f"readable {recipe.format} with rows: give the pipeline a schema."
        )
    return StructType(fields)


def _of_parquet(paths: Sequence[str], storage: Storage) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    for path in paths:
        try:
            with verdicts(), open_raw(path, storage) as raw:
                check_magic(raw.read(4))
                raw.seek(0)
                schema = pq.ParquetFile(pa.PythonFile(raw, mode="r")).schema_arrow
        except BadFile:
            continue
        return from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return StructType([])


def _of_text(spark: SparkSession, recipe: Recipe, paths: Sequence[str]) -> StructType:
    heads = [head for path in paths if (head := _head(path, recipe.max_file_bytes, recipe.storage))]
    if recipe.format == "csv":
        # A sample has one header; files with another one are told apart later.
        heads = [heads[0], *(head[1:] for head in heads[1:] if head[0] == heads[0][0])] if heads else []
    lines = spark.sparkContext.parallelize([line for head in heads for line in head], 1)
    reader = spark.read.options(**{"mode": "DROPMALFORMED", **recipe.options})
    if recipe.format == "json":
        return reader.json(lines).schema
    return (
        reader.options(**{"header": "true", "escape": '"', "inferSchema": "true", **recipe.options}).csv(lines).schema
    )


def _head(path: str, limit: int, storage: Storage) -> list[str]:
    """The first whole lines of a file; none when it is bad."""
    try:
        with verdicts(), open_text(path, limit, storage) as stream:
            data = stream.read(BYTES + 1)
            check_text(data[:4096])
    except BadFile:
        return []
    if len(data) > BYTES:
        data = data[: data.rfind(b"\n") + 1]
    return [line for line in data.decode("utf-8-sig", errors="replace").splitlines() if line.strip()]
