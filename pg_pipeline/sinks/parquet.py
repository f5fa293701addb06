"""Rows into a Parquet dataset: attempt-scoped files, which exist for readers once the manifest names them."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.types.json import Jsonb
from pyarrow import fs

from pg_pipeline.coordination.types import JSON, AttemptRef
from pg_pipeline.sinks.base import Staged, count_files, counts_files, map_in_arrow, visible
from pg_pipeline.sinks.errors import SinkSchemaMismatch, StagedRowsMissing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RESULT = pa.schema([("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("files", pa.string())])
RESULT_DDL = "path string, rows long, bytes long, files string"


@dataclass(frozen=True, slots=True)
class ParquetDataset:
    """A folder of Parquet files, local, shared or in an object store, whose committed files Postgres knows.

    Read it through `read` or `files`: the folder also holds what is being written and what was replaced.
    With `evolve`, columns may be added; files written before have null there.
    """

    path: str
    compression: str = "zstd"
    evolve: bool = False

    def __post_init__(self) -> None:
        if "://" not in self.path:
            object.__setattr__(self, "path", os.path.abspath(self.path))

    @property
    def name(self) -> str:
        return "parquet"

    def location(self, attempt: AttemptRef) -> dict[str, JSON]:
        return {"dataset": self.path, "folder": folder(attempt)}

    def prepare(self, conn: psycopg.Connection[Any], schema: StructType) -> None:
        mine = _described(schema)
        with conn.transaction():
            known = _columns(conn, self.path, mine, None)
            if known == mine:
                return
            merged = _merged(self.path, known, mine, evolve=self.evolve)
            if merged != known and _columns(conn, self.path, merged, known) != merged:
                raise SinkSchemaMismatch(
                    f"The columns of {self.path} were changed meanwhile: the batch must run again."
                )

    def stage(self, df: DataFrame, attempt: AttemptRef, dsn: str) -> Staged:  # noqa: ARG002 - sinks are called alike
        task = WriteTask(self.path, folder(attempt), self.compression)
        results = map_in_arrow(df, task, RESULT_DDL).toArrow().to_pylist()
        counted: Counter[str] = Counter()
        for result in results:
            counted.update(json.loads(result.pop("files")))
        written: list[dict[str, Any]] = [result for result in results if result["path"] is not None]
        return Staged(
            rows=sum(result["rows"] for result in written),
            location=self.location(attempt),
            rows_by_file=dict(counted) if counts_files(df.columns) else None,
            memory=written,
        )

    def publish(self, conn: psycopg.Connection[Any], staged: Staged, attempt: AttemptRef) -> int:
        system, root = _system(self.path)
        for written in staged.memory:
            info = system.get_file_info(f"{root}/{written['path']}")
            if info.type != fs.FileType.File or info.size != written["bytes"]:
                raise StagedRowsMissing(
                    f"{self.path}/{written['path']} is not as its executor reported it: the batch must run again."
                )
        conn.execute(
            "select pipeline.publish_parquet(%s, %s, %s, %s)",
            (self.path, attempt.execution, attempt.batch, Jsonb(staged.memory)),
        )
        return staged.rows

    def discard(self, conn: psycopg.Connection[Any], attempt: AttemptRef) -> None:
        discard_folder(conn, self.path, folder(attempt))

    def files(self, conn: psycopg.Connection[Any]) -> list[str]:
        """The committed files, for DuckDB, pandas, Polars or anything else that takes a list of paths."""
        return [f"{self.path}/{path}" for path in _published(conn, self.path)]

    def read(self, spark: SparkSession, conn: psycopg.Connection[Any]) -> DataFrame:
        """The committed rows as a DataFrame, as of now."""
        from pyspark.sql.types import StructType

        known = conn.execute("select columns from pipeline.parquet_dataset where dataset = %s", (self.path,)).fetchone()
        if known is None:
            raise SinkSchemaMismatch(f"Nothing was ever written to {self.path}: run its pipeline first.")
        schema = StructType.fromJson({"type": "struct", "fields": known[0]})
        paths = self.files(conn)
        return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)

    def vacuum(self, conn: psycopg.Connection[Any], *, older_than: float = 86400.0) -> list[str]:
        """Remove files that no manifest names and that are older than this many seconds; the paths removed.

        It must exceed the longest attempt and the longest reader.
        """
        system, root = _system(self.path)
        before = time.time() - older_than
        # Listed before the manifest is read: what is published in between is younger than the list.
        found = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        kept = set(_published(conn, self.path))
        removed = []
        for info in found:
            path = info.path.removeprefix(f"{root}/")
            if info.type == fs.FileType.File and path not in kept and info.mtime.timestamp() < before:
                system.delete_file(info.path)
                removed.append(path)
        return removed


@dataclass(frozen=True, slots=True)
class WriteTask:
    """What an executor runs: its rows into one file of its own, on disk before it is reported."""

    dataset: str
    folder: str
    compression: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        counts: Counter[str] = Counter()
        system, root = _system(self.dataset)
        path = f"{self.folder}/part-{context.partitionId():05}-{context.taskAttemptId()}.parquet"
        rows = 0
        writer: pq.ParquetWriter | None = None
        for found in batches:
            if found.num_rows == 0:
                continue
            batch = count_files(found, counts)
            if writer is None:
                system.create_dir(f"{root}/{self.folder}", recursive=True)
                writer = pq.ParquetWriter(
                    f"{root}/{path}", batch.schema, filesystem=system, compression=self.compression
                )
            writer.write_batch(batch)
            rows += batch.num_rows
        size = 0
        if writer is not None:
            writer.close()
            size = _to_disk(system, root, path)
        yield pa.RecordBatch.from_pydict(
            {"path": [path if rows else None], "rows": [rows], "bytes": [size], "files": [json.dumps(counts)]},
            schema=RESULT,
        )


def folder(attempt: AttemptRef) -> str:
    """Below the dataset; the token makes it the attempt's own."""
    return f"{quote(attempt.execution, safe='')}/{attempt.batch:06}/{attempt.mark}"


def discard_folder(conn: psycopg.Connection[Any], dataset: str, inner: str) -> None:
    """Remove an attempt's folder, unless the manifest names a file in it."""
    if any(path.startswith(f"{inner}/") for path in _published(conn, dataset)):
        return
    system, root = _system(dataset)
    if system.get_file_info(f"{root}/{inner}").type == fs.FileType.Directory:
        system.delete_dir(f"{root}/{inner}")


def _to_disk(system: Any, root: str, path: str) -> int:
    """The file's size, once it and the folders that lead to it would survive a power cut."""
    if isinstance(system, fs.LocalFileSystem):
        file = Path(root) / path
        for place in [file, *list(file.parents)[: path.count("/") + 1]]:
            handle = os.open(place, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return file.stat().st_size
    return int(system.get_file_info(f"{root}/{path}").size)


def _system(dataset: str) -> tuple[Any, str]:
    system, root = fs.FileSystem.from_uri(dataset if "://" in dataset else Path(dataset).as_uri())
    return system, root.rstrip("/")


def _published(conn: psycopg.Connection[Any], dataset: str) -> list[str]:
    return [path for path, *_ in conn.execute("select * from pipeline.parquet_files(%s)", (dataset,))]


def _described(schema: StructType) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = visible(schema).jsonValue()["fields"]
    return [{**field, "nullable": True, "metadata": {}} for field in described]


def _columns(conn: psycopg.Connection[Any], dataset: str, columns: Sequence[Any], seen: Sequence[Any] | None) -> Any:
    arguments = (dataset, Jsonb(columns), None if seen is None else Jsonb(seen))
    found = conn.execute("select pipeline.parquet_columns(%s, %s, %s)", arguments).fetchone()
    return found[0] if found else None


def _merged(
    path: str, known: list[dict[str, Any]], mine: list[dict[str, Any]], *, evolve: bool
) -> list[dict[str, Any]]:
    types = {field["name"]: field["type"] for field in known}
    for field in mine:
        if field["name"] in types and types[field["name"]] != field["type"]:
            raise SinkSchemaMismatch(
                f"{path} has {field['name']} as {types[field['name']]}, the rows as {field['type']}: cast it."
            )
    lost = [name for name in types if name not in {field["name"] for field in mine}]
    new = [field for field in mine if field["name"] not in types]
    if lost or (new and not evolve):
        said = f"the rows lack {lost}" if lost else f"the rows add {[f['name'] for f in new]}"
        raise SinkSchemaMismatch(
            f"The columns of {path} are others ({said}): change the transform, or allow evolve=True."
        )
    return [*known, *new]
