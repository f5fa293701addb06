"""Spark's own reader. It cannot judge files one by one, so the driver looks at their heads first, rows are flagged
and counted as they pass, and a file that turns out bad is left out of a second run."""

from __future__ import annotations

import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.spark.arrow_csv import check_header, parse_header
from pg_pipeline.spark.arrow_parquet import check_magic, check_schema
from pg_pipeline.spark.arrow_reader import read_plan
from pg_pipeline.spark.files import (
    BadFile,
    check_inside,
    check_text,
    check_unchanged,
    check_unpacks,
    open_raw,
    open_text,
    verdicts,
)
from pg_pipeline.spark.hadoop import hadoop_name
from pg_pipeline.spark.pieces import ReadPlan
from pg_pipeline.spark.recipe import FILE_COLUMN, Recipe
from pg_pipeline.spark.reports import FileReport

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession
    from pyspark.sql.types import DataType

CORRUPT = "_corrupt_record"
HASH, BAD, DRIFTED, RESCUED = "_path_hash", "_row_bad", "_row_drifted", "_row_rescued"
_PATTERN = re.compile(r"[\[\]{}*?\\]")
# Strict JSON, and CSV as RFC 4180 has it: what Arrow means by them. A recipe's own options come after.
_JSON_OPTIONS = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "mode": "PERMISSIVE"}
_CSV_OPTIONS = {
    "header": "true",
    "escape": '"',
    "multiLine": "true",
    "mode": "PERMISSIVE",
    "enforceSchema": "true",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What the heads of the files say: the bad ones, and which columns each good one has."""

    bad: dict[int, FileReport] = field(default_factory=dict)
    columns: dict[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tally:
    """Rows of each file, as they passed by."""

    rows: Mapping[str, int]
    bad: Mapping[str, int]
    drifted: Mapping[str, int]
    rescued: Mapping[str, int]

    def joined(self, other: Tally) -> Tally:
        return Tally(
            {**self.rows, **other.rows},
            {**self.bad, **other.bad},
            {**self.drifted, **other.drifted},
            {**self.rescued, **other.rescued},
        )


def look(recipe: Recipe, files: Sequence[BatchFile]) -> Look:
    """Stats and heads of all files, on the driver: no job, and a few milliseconds a file."""
    plan = read_plan(recipe)
    found = Look()
    if not files:
        return found
    with ThreadPoolExecutor(min(16, len(files))) as pool:
        for file, answer in zip(files, pool.map(lambda f: _look_at(f, plan), files), strict=True):
            if isinstance(answer, BadFile):
                found.bad[file.ordinal] = FileReport.bad(file.ordinal, answer, file.size)
            else:
                found.columns[file.ordinal] = answer
    return found


def still_there(files: Sequence[BatchFile], recipe: Recipe) -> dict[int, FileReport]:
    """The files that changed or went away while they were read."""
    found = {}
    for file in files:
        try:
            check_inside(file.path, recipe.roots)
            check_unchanged(file.path, file.version, file.size, recipe.storage, reading=True)
        except BadFile as verdict:
            found[file.ordinal] = FileReport.bad(file.ordinal, verdict, file.size)
    return found


def _look_at(file: BatchFile, plan: ReadPlan) -> tuple[str, ...] | BadFile:
    try:
        check_inside(file.path, plan.roots)
        check_shown(file.path)
        check_unchanged(file.path, file.version, file.size, plan.storage, reading=False)
        with verdicts():
            columns = _columns_of(file.path, plan)
            if plan.format != "parquet":
                check_unpacks(file.path, file.size, plan.max_file_bytes, plan.storage)
            return columns
    except BadFile as verdict:
        return verdict


def check_shown(path: str) -> None:
    """Spark passes over such names without a word, as if the files were empty."""
    name = path.rsplit("/", 1)[-1]
    if name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_"):
        raise BadFile("hidden", "Spark's reader does not read names that begin with . or _: use the arrow reader")


def _columns_of(path: str, plan: ReadPlan) -> tuple[str, ...]:
    rescue = plan.rescued_column is not None
    if plan.format == "parquet":
        with open_raw(path, plan.storage) as raw:
            check_magic(raw.read(4))
            raw.seek(0)
            schema = pq.ParquetFile(pa.PythonFile(raw, mode="r")).schema_arrow
        return tuple(check_schema(schema, plan.fields, rescue=rescue))
    with open_text(path, plan.max_file_bytes, plan.storage) as raw, io.BufferedReader(raw) as stream:  # type: ignore[type-var]
        head = stream.peek(4096)[:4096]
        if not head.strip():
            raise BadFile("empty", "the file has no rows")
        check_text(head)
        if plan.format == "json":
            return ()
        header = parse_header(stream, plan)
        check_header(header, plan.fields.names, rescue=rescue)
        return tuple(header)


class SparkRead:
    """One reading of some files: `rows` for the transform, `tally` once the job has run."""

    def __init__(self, spark: SparkSession, recipe: Recipe, files: Sequence[BatchFile], seen: Look) -> None:
        from pyspark.sql import Observation

        self.spark = spark
        self.recipe = recipe
        self.files = files
        self.hashes, self.salt = _hashes(spark, files)
        self.observation: Observation = Observation()
        self.flagged = self._flagged(seen)
        self.rows = self._clean(self._observed(self.flagged))

    def tally(self) -> Tally | None:
        """The counts, or None when Spark ran a part twice, so that they cannot be trusted."""
        try:
            found = self.observation.get
        except Py4JJavaError:  # a plan that Spark could answer without reading a row
            return None
        return trusted(found, self.hashes)

    def count(self) -> Tally:
        """The counts by a job of their own, where the first could not tell."""
        from pyspark.sql import functions as f

        counted = self.flagged.groupBy(HASH).agg(
            f.count("*"), f.count_if(BAD), f.count_if(DRIFTED), f.count_if(RESCUED)
        )
        maps: list[dict[str, int]] = [{}, {}, {}, {}]
        for value, *numbers in counted.collect():
            for into, number in zip(maps, numbers, strict=True):
                into[self.hashes[value]] = number
        return Tally(*maps)

    def _observed(self, rows: DataFrame) -> DataFrame:
        """Counts per file as rows pass: in a histogram with a bin for each file, only equal ones are merged."""
        from pyspark.sql import functions as f

        bins = f.lit(len(self.files) + 2)
        number = f.monotonically_increasing_id()
        rows = rows.withColumn("_first", number % (1 << 33) == 0).withColumn("_partition", f.spark_partition_id())

        def histogram(name: str, which: Column) -> Column:
            return f.histogram_numeric(which, bins).alias(name)

        return rows.observe(
            self.observation,
            histogram("rows", f.col(HASH)),
            histogram("bad", f.when(f.col(BAD), f.col(HASH))),
            histogram("drifted", f.when(f.col(DRIFTED), f.col(HASH))),
            histogram("rescued", f.when(f.col(RESCUED), f.col(HASH))),
            f.array(f.count("*"), f.count_if(BAD), f.count_if(DRIFTED), f.count_if(RESCUED)).alias("totals"),
            f.count_if("_first").alias("evaluations"),
            f.collect_set(f.when(f.col("_first"), f.col("_partition"))).alias("partitions"),
        )

    def _clean(self, rows: DataFrame) -> DataFrame:
        """What the transform gets: the good rows, and where each came from."""
        from pyspark.sql import functions as f

        names = [f.col(_quoted(name)) for name in self.recipe.read_struct().names]
        if not self.files:
            return rows.select(*names, f.lit(None).cast("string").alias(FILE_COLUMN))
        paths = f.map_from_arrays(f.lit(list(self.hashes)), f.lit(list(self.hashes.values())))
        return rows.where(~f.col(BAD)).select(*names, f.element_at(paths, f.col(HASH)).alias(FILE_COLUMN))

    def _flagged(self, seen: Look) -> DataFrame:
        """Every row with its flags; files with different columns are read apart and put together."""
        from pyspark.sql import functions as f

        if not self.files:
            nothing = self.spark.createDataFrame([], self.recipe.read_struct())
            return self._flags(nothing.withColumn(HASH, f.lit(0).cast("long")).withColumn(BAD, f.lit(False)))
        shapes: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for file in self.files:
            # Told to take paths as they are, Spark reads every path once for each that could be a pattern.
            alone = file.path if _PATTERN.search(file.path) else ""
            shapes.setdefault((seen.columns.get(file.ordinal, ()), alone), []).append(hadoop_name(file.path))
        reads: dict[str, Callable[[list[str], tuple[str, ...]], DataFrame]] = {
            "json": self._json,
            "csv": self._csv,
            "parquet": self._parquet,
        }
        read = reads[self.recipe.format]
        parts = [read(paths, columns) for (columns, _), paths in shapes.items()]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.unionByName(part)
        return whole

    def _reader(self, options: Mapping[str, str]) -> DataFrameReader:
        # Spark takes paths for patterns. Escaping is no way out: Hadoop can't walk a pattern to a name with a colon.
        return self.spark.read.options(**options).option("__globPaths__", "false")

    def _hash(self) -> Column:
        from pyspark.sql import functions as f

        return f.crc32(f.concat(f.col("_metadata.file_path"), f.lit(self.salt)))

    def _json(self, paths: list[str], _shape: tuple[str, ...]) -> DataFrame:
        from pyspark.sql import functions as f

        schema = self.recipe.struct().add(CORRUPT, "string")
        options = {**_JSON_OPTIONS, **self.recipe.options, "columnNameOfCorruptRecord": CORRUPT}
        text = {name: value for name, value in self.recipe.options.items() if name in ("encoding", "lineSep")}
        lines = self._reader(text).text(paths).withColumn(HASH, self._hash())
        rows = lines.where(f.trim("value", f.lit(" \t\r")) != "").withColumn(
            "_row", f.from_json("value", schema, options)
        )
        bad = f.col(f"_row.{CORRUPT}").isNotNull() | ~f.is_valid_utf8("value") | f.col("_row").isNull()
        known = f.lit(self.recipe.struct().names)
        names = [f.col(f"_row.{_quoted(name)}").alias(name) for name in self.recipe.struct().names]
        if self.recipe.drift != "rescue":
            drifted = f.coalesce(_unknown_fields(f.col("value"), self.recipe.struct()), f.lit(False))
            return self._flags(rows.select(*names, HASH, bad.alias(BAD), drifted.alias(DRIFTED)))
        texts = f.from_json("value", "map<string,string>", {**_JSON_OPTIONS, **self.recipe.options})
        rows = rows.withColumn("_texts", texts)
        lost = f.map_filter("_texts", lambda key, text: text.isNotNull() & ~f.array_contains(known, key))
        for name in self.recipe.struct().names:
            # A text in the file and a null in the row: the value had another type.
            unread = f.col(f"_row.{_quoted(name)}").isNull() & f.col("_texts").getItem(name).isNotNull()
            lost = f.when(
                unread, f.map_concat(lost, f.create_map(f.lit(name), f.col("_texts").getItem(name)))
            ).otherwise(lost)
        saved = f.when(f.size(lost) > 0, f.to_json(lost))
        not_json = f.col("_texts").isNull() | ~f.is_valid_utf8("value")
        nested = f.coalesce(_unknown_fields(f.col("value"), self.recipe.struct(), top=False), f.lit(False))
        saved = saved.alias(self.recipe.rescued_column)
        return self._flags(rows.select(*names, saved, HASH, not_json.alias(BAD), nested.alias(DRIFTED)))

    def _csv(self, paths: list[str], header: tuple[str, ...]) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField, StructType

        struct = self.recipe.struct()
        types = {given.name: given.dataType for given in struct.fields}
        extra = [name for name in header if name not in types]
        options = {**_CSV_OPTIONS, **self.recipe.options, "columnNameOfCorruptRecord": CORRUPT}
        rescue = self.recipe.drift == "rescue"
        # To rescue what does not fit its type, the text is needed beside the value.
        fields = [StructField(name, StringType() if rescue else types[name]) for name in header]
        schema = StructType([*fields, StructField(CORRUPT, StringType())])
        rows = self._reader(options).schema(schema).csv(paths).withColumn(HASH, self._hash())
        # A text of another type is seen only in columns that are used, so this uses all of them (and is 0).
        used = f.pmod(f.xxhash64(*map(_quoted, header)), f.lit(1))
        bad = f.when(f.col(CORRUPT).isNotNull(), f.lit(1)).otherwise(used) == 1
        if not rescue:
            return self._flags(rows.select(*map(_quoted, struct.names), HASH, bad.alias(BAD)))
        values = {name: _try_cast(name, types[name]) for name in struct.names}
        lost = [f.when(values[n].isNull(), f.col(_quoted(n))).alias(n) for n in struct.names]
        saved = f.to_json(f.struct(*(f.col(_quoted(n)) for n in extra), *lost))
        return self._flags(
            rows.select(
                *(value.alias(name) for name, value in values.items()),
                f.when(saved != "{}", saved).alias(self.recipe.rescued_column),
                HASH,
                bad.alias(BAD),
            )
        )

    def _parquet(self, paths: list[str], extra: tuple[str, ...]) -> DataFrame:
        from pyspark.sql import functions as f

        reader = self._reader(self.recipe.options)
        if self.recipe.drift != "rescue":
            rows = reader.schema(self.recipe.struct()).parquet(*paths)
            return self._flags(rows.withColumn(HASH, self._hash()).withColumn(BAD, f.lit(False)))
        rows = reader.parquet(*paths).withColumn(HASH, self._hash())
        saved = f.to_json(f.struct(*map(_quoted, extra))) if extra else f.lit(None).cast("string")
        values = [f.col(_quoted(given.name)).cast(given.dataType).alias(given.name) for given in self.recipe.struct()]
        saved = f.when(saved != "{}", saved).alias(self.recipe.rescued_column)
        return self._flags(rows.select(*values, saved, HASH).withColumn(BAD, f.lit(False)))

    def _flags(self, rows: DataFrame) -> DataFrame:
        """The same columns for every format."""
        from pyspark.sql import functions as f

        if DRIFTED not in rows.columns:
            rows = rows.withColumn(DRIFTED, f.lit(False))
        name = self.recipe.rescued_column
        saved = f.col(_quoted(name)).isNotNull() & ~f.col(BAD) if name in rows.columns else f.lit(False)
        return rows.withColumn(RESCUED, saved)


def trusted(observed: Mapping[str, Any], hashes: Mapping[int, str]) -> Tally | None:
    """The counts as Spark observed them; None when a part was read twice, or when they do not add up."""
    if not observed or observed["evaluations"] != len(observed["partitions"] or []):
        return None
    counts = [_by_path(observed[name], hashes) for name in ("rows", "bad", "drifted", "rescued")]
    totals = [sum(count.values()) for count in counts]
    return Tally(*counts) if totals == list(observed["totals"]) else None


def _by_path(histogram: Any, hashes: Mapping[int, str]) -> Counter[str]:
    """Merged bins keep their counts; their places have rounding errors, and one file may have several."""
    counts: Counter[str] = Counter()
    for row in histogram or []:
        path = hashes.get(round(row["x"]))
        if path is not None:
            counts[path] += round(row["y"])
    return counts


def verdict(file: BatchFile, tally: Tally, recipe: Recipe) -> FileReport:
    """A file's report from its counts."""
    rows, bad = tally.rows.get(file.path, 0), tally.bad.get(file.path, 0)
    drifted = tally.drifted.get(file.path, 0)
    if drifted:
        return FileReport(file.ordinal, reason="wrong_schema", size=file.size,
                          detail=f"{drifted} rows have fields that the schema lacks")  # fmt: skip
    if bad > recipe.max_bad_lines:
        return FileReport(file.ordinal, reason="bad_lines", size=file.size,
                          detail=f"{bad} bad lines, {recipe.max_bad_lines} allowed")  # fmt: skip
    return FileReport(file.ordinal, rows, tally.rescued.get(file.path, 0), bad, size=file.size)


def stops_early(out: DataFrame) -> bool:
    """Whether a limit may leave rows unread, and so uncounted."""
    return bool(re.search(r"\b(Global|Local)?Limit\b|\bTail\b", str(out._jdf.queryExecution().analyzed().toString())))


def _hashes(spark: SparkSession, files: Sequence[BatchFile]) -> tuple[dict[int, str], str]:
    """What Spark calls each file, as a number that fits a histogram; salted until no two are alike."""
    assert spark.sparkContext._jvm is not None
    java_path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
    names: dict[str, str] = {}
    for file in files:
        uri = str(java_path(hadoop_name(file.path)).toUri().toString())
        plain = re.sub(r"^file:/+", "/", uri)
        forms = (f"file:{plain}", f"file://{plain}") if plain.startswith("/") else (uri,)
        names.update(dict.fromkeys(forms, file.path))
    for salt in ("", "-", "+", "~"):
        hashes = {zlib.crc32((name + salt).encode()): path for name, path in names.items()}
        if len(hashes) == len(names):
            return hashes, salt
    raise AssertionError("four salts in a row collided")


def _unknown_fields(text: Column, kind: DataType, *, top: bool = True) -> Column:
    """Whether a JSON text has fields, at any depth, that the type lacks; null for what is no such JSON."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        found = f.lit(False)
        if top:
            found = f.size(f.array_except(f.json_object_keys(text), f.lit(kind.names))) > 0
        for given in kind.fields:
            if _has_struct(given.dataType):
                inner = f.get_json_object(text, "$['" + given.name.replace("'", "\\'") + "']")
                found = found | f.coalesce(_unknown_fields(inner, given.dataType), f.lit(False))
        return found
    if isinstance(kind, t.ArrayType) and _has_struct(kind.elementType):
        element = kind.elementType
        return f.exists(
            f.from_json(text, "array<string>"),
            lambda item: f.coalesce(_unknown_fields(item, element), f.lit(False)),
        )
    return f.lit(False)


def _has_struct(kind: DataType) -> bool:
    from pyspark.sql import types as t

    return isinstance(kind, t.StructType) or (isinstance(kind, t.ArrayType) and _has_struct(kind.elementType))


def _try_cast(name: str, kind: Any) -> Column:
    from pyspark.sql import functions as f

    return f.col(_quoted(name)).try_cast(kind)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
