"""What an executor runs for the Postgres sink: rows become COPY bytes, and go inline or to a staging table.

A task with little to say returns its bytes with its result, which Spark delivers exactly once. One with much
copies them to a staging table of its own and reports its name and count: a table that nobody reported is
never read, so retries and speculative tasks cannot double a row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from pg_pipeline.sinks.base import BATCH, EXECUTION, count_files
from pg_pipeline.sinks.columns import Column, encoder

STAGING_SCHEMA = "pipeline_staging"
HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"
RESULT = pa.schema([("rows", pa.int64()), ("staged_in", pa.string()), ("files", pa.string()), ("data", pa.binary())])
RESULT_DDL = "rows long, staged_in string, files string, data binary"


@dataclass(frozen=True, slots=True)
class CopyTask:
    columns: Sequence[Column]
    execution: str
    batch: int
    mark: str
    dsn: str
    inline_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        counts: Counter[str] = Counter()
        rows = [0]
        tuples = self._tuples(batches, counts, rows)
        inline: list[bytes] = []
        size = 0
        for data in tuples:
            inline.append(data)
            size += len(data)
            if size > self.inline_bytes:
                table = f"{staging_prefix(self.mark)}{context.taskAttemptId()}"
                self._copy(table, _chain(inline, tuples))
                yield _result(rows[0], table, counts, None)
                return
        for data in inline:
            yield _result(0, None, None, data)
        yield _result(rows[0], None, counts, None)

    def _tuples(self, batches: Iterator[pa.RecordBatch], counts: Counter[str], rows: list[int]) -> Iterator[bytes]:
        """The rows of each batch as COPY tuples, without the stream's header and trailer."""
        encode = None
        for found in batches:
            if found.num_rows == 0:
                continue
            batch = self._with_provenance(count_files(found, counts))
            if encode is None:
                encode = encoder(batch.schema, self.columns)
                encode.write_header()
            rows[0] += batch.num_rows
            data = encode.write_batch(batch)
            if data:
                yield data
        if encode is not None:
            # The encoder holds some tuples back until the end, which it marks.
            yield encode.finish()[: -len(TRAILER)]

    def _with_provenance(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        execution = pa.repeat(pa.scalar(self.execution, pa.string()), batch.num_rows)
        number = pa.repeat(pa.scalar(self.batch, pa.int32()), batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, execution, number], [*batch.schema.names, EXECUTION, BATCH])

    def _copy(self, table: str, tuples: Iterable[bytes]) -> None:
        name = sql.Identifier(STAGING_SCHEMA, table)
        definitions = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.type)) for c in self.columns
        )
        with psycopg.connect(self.dsn, application_name="pg_pipeline executor") as conn:
            # The role's, not the login's: workers with other logins must be able to discard it.
            conn.execute(
                "select set_config('role', 'pipeline_worker', true) where pg_has_role('pipeline_worker', 'set')"
            )
            conn.execute(sql.SQL("create unlogged table {} ({})").format(name, definitions))
            copy_binary(conn, name, self.columns, tuples)


def copy_binary(
    conn: psycopg.Connection[Any], table: sql.Composable, columns: Sequence[Column], tuples: Iterable[bytes]
) -> int:
    names = sql.SQL(", ").join(sql.Identifier(c.name) for c in columns)
    statement = sql.SQL("copy {} ({}) from stdin (format binary)").format(table, names)
    with conn.cursor() as cursor:
        with cursor.copy(statement) as copy:
            copy.write(HEADER)
            for data in tuples:
                copy.write(data)
            copy.write(TRAILER)
        return cursor.rowcount


def staging_prefix(mark: str) -> str:
    return f"a_{mark}_"


def _chain(first: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while first:
        yield first.pop(0)
    yield from rest


def _result(rows: int, table: str | None, counts: Counter[str] | None, data: bytes | None) -> pa.RecordBatch:
    files = None if counts is None else json.dumps(counts)
    return pa.RecordBatch.from_pydict(
        {"rows": [rows], "staged_in": [table], "files": [files], "data": [data]}, schema=RESULT
    )
