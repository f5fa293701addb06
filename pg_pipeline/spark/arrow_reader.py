"""The Arrow reader inside Spark: each task reads its files with pyarrow, one at a time, and judges each by itself."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.spark.arrow_csv import read_csv
from pg_pipeline.spark.arrow_json import read_json
from pg_pipeline.spark.arrow_parquet import read_parquet
from pg_pipeline.spark.files import BadFile, check_inside, check_unchanged, too_large, verdicts
from pg_pipeline.spark.pieces import Piece, ReadPlan
from pg_pipeline.spark.recipe import FILE_COLUMN, Recipe
from pg_pipeline.spark.reports import FileReport, Reports
from pg_pipeline.spark.spool import Spool
from pg_pipeline.spark.values import NeedsSpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

ORDINAL = "_ordinal"
ROWS = 64 * 1024
READERS: dict[str, Callable[[str, ReadPlan], Iterator[Piece]]] = {
    "json": read_json,
    "csv": read_csv,
    "parquet": read_parquet,
}
_CSV_OPTIONS = {"sep", "delimiter", "quote", "header"}


def arrow_can(recipe: Recipe) -> bool:
    """Whether the conformance suite holds for this recipe: the same rows as Spark's reader, whatever the file."""
    options = {name for name in recipe.options if not (name == "header" and recipe.options[name] == "true")}
    if options - (_CSV_OPTIONS if recipe.format == "csv" else set()):
        return False
    if recipe.format == "csv" and len(recipe.options.get("sep", recipe.options.get("delimiter", ","))) != 1:
        return False
    return all(_supports(recipe.format, f.dataType, top=True) for f in recipe.struct().fields)


def needs_spark(recipe: Recipe) -> bool:
    """Whether only Spark's own reader will do."""
    return recipe.reader == "spark" or (recipe.reader == "auto" and not arrow_can(recipe))


def _supports(file_format: str, kind: DataType, *, top: bool = False) -> bool:
    from pyspark.sql import types as t

    simple = (t.BooleanType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.StringType)
    if isinstance(kind, simple):
        return not isinstance(kind, t.CharType | t.VarcharType)
    if isinstance(kind, t.DateType | t.TimestampType | t.TimestampNTZType):
        return top or file_format == "parquet"
    if isinstance(kind, t.DecimalType):
        return True
    if file_format == "csv":
        return False
    if isinstance(kind, t.ArrayType):
        return _supports(file_format, kind.elementType)
    if isinstance(kind, t.StructType):
        return all(_supports(file_format, f.dataType) for f in kind.fields)
    if file_format == "parquet":
        if isinstance(kind, t.MapType):
            return _supports(file_format, kind.keyType) and _supports(file_format, kind.valueType)
        return isinstance(kind, t.ByteType | t.BinaryType)
    return False


def read_plan(recipe: Recipe, *, strict: bool = False) -> ReadPlan:
    from pyspark.sql.pandas.types import to_arrow_schema

    return ReadPlan(
        format=recipe.format,
        fields=to_arrow_schema(recipe.struct(), timezone="UTC"),
        drift=recipe.drift,
        max_bad_lines=recipe.max_bad_lines,
        max_file_bytes=recipe.max_file_bytes,
        rescued_column=recipe.rescued_column if recipe.drift == "rescue" else None,
        options=dict(recipe.options),
        strict=strict,
        roots=tuple(recipe.roots),
        storage=recipe.storage,
    )


def read_with_arrow(
    spark: SparkSession, recipe: Recipe, files: Sequence[BatchFile], reports: Reports, *, strict: bool = False
) -> DataFrame:
    """The rows of the good files, with `_file`; every file's report arrives with the task that read it."""
    from pyspark.sql import types as t

    shares = deal(files, spark.sparkContext.defaultParallelism)
    schema = t.StructType([*recipe.read_struct().fields, t.StructField(ORDINAL, t.IntegerType())])
    task = ReadTask(shares, read_plan(recipe, strict=strict), reports)
    rows = spark.range(0, len(shares), 1, len(shares)).mapInArrow(task, schema)
    return with_path(rows, files)


def with_path(rows: DataFrame, files: Sequence[BatchFile]) -> DataFrame:
    """Ordinals travel from the readers, paths are looked up where they are wanted."""
    from pyspark.sql import functions as f

    if not files:
        return rows.withColumn(FILE_COLUMN, f.lit(None).cast("string")).drop(ORDINAL)
    first = min(file.ordinal for file in files)
    paths = dict.fromkeys(range(first, max(file.ordinal for file in files) + 1), "")
    paths.update({file.ordinal: file.path for file in files})
    lookup = f.lit(list(paths.values()))
    return rows.withColumn(FILE_COLUMN, f.get(lookup, f.col(ORDINAL) - first)).drop(ORDINAL)


def deal(files: Sequence[BatchFile], slots: int) -> list[list[BatchFile]]:
    """Files to tasks, the largest first to the task with least to do; twice as many tasks as slots."""
    shares: list[list[BatchFile]] = [[] for _ in range(max(1, min(len(files), 2 * slots)))]
    load = [(0, i) for i in range(len(shares))]
    for file in sorted(files, key=lambda file: (-file.size, file.ordinal)):
        work, i = heapq.heappop(load)
        shares[i].append(file)
        # Opening a file costs something too, however small it is.
        heapq.heappush(load, (work + file.size + (64 << 10), i))
    return shares


class ReadTask:
    """What a task runs: reads the files of its share. A class, so that it pickles by name."""

    def __init__(self, shares: list[list[BatchFile]], plan: ReadPlan, reports: Reports | None) -> None:
        self.shares = shares
        self.plan = plan
        self.reports = reports

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                for file in self.shares[share]:
                    yield from self.read(file)

    def read(self, file: BatchFile) -> Iterator[pa.RecordBatch]:
        with Spool(self.plan.schema) as spool:
            report = read_file(file, self.plan, spool)
            if self.reports is not None:
                self.reports.add({report})
            if report.reason is None and report.doubtful is None:
                for batch in spool.batches(ROWS):
                    ordinals: Any = pa.repeat(pa.scalar(file.ordinal, pa.int32()), batch.num_rows)
                    yield pa.RecordBatch.from_arrays([*batch.columns, ordinals], [*batch.schema.names, ORDINAL])


def read_file(file: BatchFile, plan: ReadPlan, spool: Spool, *, seen: bool = False) -> FileReport:
    """Reads one whole file; its rows count only when the report has no reason and no doubt.

    `seen` says that the file was there before, in this attempt.
    """
    rows_in = rescued = kept = size = 0
    try:
        check_inside(file.path, plan.roots)
        check_unchanged(file.path, file.version, file.size, plan.storage, reading=seen)
        with verdicts():
            for piece in READERS[plan.format](file.path, plan):
                rows_in += piece.rows_in
                rescued += piece.rescued
                kept += piece.table.num_rows
                size += piece.table.nbytes
                if size > plan.max_file_bytes:
                    raise too_large(f"its rows take more than {plan.max_file_bytes} bytes")
                spool.add(piece.table)
        check_inside(file.path, plan.roots)  # a link may have been moved meanwhile
        check_unchanged(file.path, file.version, file.size, plan.storage, reading=True)
    except BadFile as verdict:
        return FileReport.bad(file.ordinal, _after_reading(verdict, file, plan), file.size)
    except OSError:
        # A store that will not read on, since the object is another one by now.
        later = _trouble(file, plan)
        if later is None:
            raise
        return FileReport.bad(file.ordinal, later, file.size)
    except NeedsSpark as doubt:
        return FileReport(file.ordinal, doubtful=str(doubt)[:200], size=file.size)
    return FileReport(file.ordinal, rows_in, rescued, rows_in - kept, size=file.size)


def _after_reading(verdict: BadFile, file: BatchFile, plan: ReadPlan) -> BadFile:
    """Bytes that make no sense are explained by a file that changed meanwhile, if it did."""
    if verdict.reason in ("missing", "vanished", "changed", "no_permission", "outside"):
        return verdict
    return _trouble(file, plan) or verdict


def _trouble(file: BatchFile, plan: ReadPlan) -> BadFile | None:
    try:
        check_unchanged(file.path, file.version, file.size, plan.storage, reading=True)
    except BadFile as found:
        return found
    return None
