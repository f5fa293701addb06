"""Rows into a Postgres table: by binary COPY, small results in the finish transaction, large ones staged before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from pg_pipeline.coordination.types import JSON, AttemptRef
from pg_pipeline.sinks import target
from pg_pipeline.sinks.base import BATCH, EXECUTION, Staged, counts_files, map_in_arrow
from pg_pipeline.sinks.columns import Column, columns_of, sendable
from pg_pipeline.sinks.copying import RESULT_DDL, STAGING_SCHEMA, CopyTask, copy_binary, staging_prefix
from pg_pipeline.sinks.errors import SinkKeyMissing, SinkSchemaMismatch, StagedRowsMissing, ValueRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PROVENANCE = [Column(EXECUTION, "text"), Column(BATCH, "integer")]


@dataclass(frozen=True, slots=True)
class _Memory:
    columns: Sequence[Column]
    tables: Sequence[tuple[str, int]]
    tuples: Sequence[Any]
    inline_rows: int


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table of one's own Postgres database, `schema.table` or `table`.

    `append` adds a batch's rows; `upsert` keeps one row per `key`, the one with the greatest `order`.
    With `evolve`, columns that the table lacks are added to it.
    A batch's bytes up to about `inline_bytes` go through the driver, more are copied by the executors.
    A re-run replaces a batch's rows; what an upsert had overwritten before does not come back.
    """

    table: str
    mode: Literal["append", "upsert"] = "append"
    key: Sequence[str] = ()
    order: str | None = None
    evolve: bool = False
    inline_bytes: int = 192 << 20

    def __post_init__(self) -> None:
        target.parts(self.table)
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        if self.mode not in ("append", "upsert"):
            raise SinkSchemaMismatch(f"mode is {self.mode!r}: use append or upsert.")
        if (self.mode == "upsert") != bool(self.key) or bool(self.key) != (self.order is not None):
            raise SinkSchemaMismatch(f"{self.table}: upsert needs key=… and order=…, and append takes neither.")

    @property
    def name(self) -> str:
        return "postgres"

    def location(self, attempt: AttemptRef) -> dict[str, JSON]:
        return {"schema": STAGING_SCHEMA, "prefix": staging_prefix(attempt.mark)}

    def prepare(self, conn: psycopg.Connection[Any], schema: StructType) -> None:
        columns = columns_of(schema)
        wanted = [name for name in (*self.key, self.order) if name is not None]
        lacking = [name for name in wanted if name not in [c.name for c in columns]]
        if lacking:
            raise SinkSchemaMismatch(f"The rows for {self.table} lack {lacking}, which its key or order needs.")
        target.prepare(conn, self.table, [*columns, *PROVENANCE], key=self.key, evolve=self.evolve)

    def stage(self, df: DataFrame, attempt: AttemptRef, dsn: str) -> Staged:
        columns = [*columns_of(df.schema), *PROVENANCE]
        slots = max(1, df.sparkSession.sparkContext.defaultParallelism)
        task = CopyTask(
            columns=columns,
            execution=attempt.execution,
            batch=attempt.batch,
            mark=attempt.mark,
            dsn=dsn,
            inline_bytes=self.inline_bytes // slots,
        )
        counted = counts_files(df.columns)
        results = map_in_arrow(sendable(df), task, RESULT_DDL).toArrow()
        tables: list[tuple[str, int]] = []
        files: Counter[str] = Counter()
        inline_rows = 0
        for result in results.select(["rows", "staged_in", "files"]).to_pylist():
            files.update(json.loads(result["files"] or "{}"))
            if result["staged_in"] is not None:
                tables.append((result["staged_in"], result["rows"]))
            else:
                inline_rows += result["rows"]
        tuples = [data for data in results.column("data") if data.is_valid]
        return Staged(
            rows=inline_rows + sum(rows for _, rows in tables),
            location=self.location(attempt),
            rows_by_file=dict(files) if counted else None,
            memory=_Memory(columns, tables, tuples, inline_rows),
        )

    def publish(self, conn: psycopg.Connection[Any], staged: Staged, attempt: AttemptRef) -> int:
        memory: _Memory = staged.memory
        table = target.identifier(self.table)
        conn.execute(
            sql.SQL("delete from {} where {} = %s and {} = %s").format(
                table, sql.Identifier(EXECUTION), sql.Identifier(BATCH)
            ),
            (attempt.execution, attempt.batch),
        )
        try:
            if self.mode == "append":
                published = self._fill(conn, table, memory)
            else:
                published = self._upsert(conn, table, memory, attempt)
        except psycopg.DataError as error:
            raise ValueRefused(f"{self.table} cannot hold a value of batch {attempt.batch}: {error}") from None
        for name, _ in memory.tables:
            conn.execute(sql.SQL("drop table {}").format(sql.Identifier(STAGING_SCHEMA, name)))
        return published

    def _fill(self, conn: psycopg.Connection[Any], into: sql.Composable, memory: _Memory) -> int:
        """Inline bytes and reported staging tables into one table, counted against what was reported."""
        found = copy_binary(conn, into, memory.columns, (t.as_buffer() for t in memory.tuples)) if memory.tuples else 0
        self._check(found, memory.inline_rows, "the driver")
        names = _names(c.name for c in memory.columns)
        for name, rows in memory.tables:
            staging = sql.Identifier(STAGING_SCHEMA, name)
            statement = sql.SQL("insert into {} ({}) select {} from {}").format(into, names, names, staging)
            try:
                # A savepoint: an error must leave the caller's transaction usable.
                with conn.transaction():
                    moved = conn.execute(statement).rowcount
            except psycopg.errors.UndefinedTable:
                moved = 0
            self._check(moved, rows, f"{STAGING_SCHEMA}.{name}")
            found += moved
        return found

    def _check(self, found: int, reported: int, where: str) -> None:
        if found != reported:
            raise StagedRowsMissing(
                f"{where} holds {found} rows for {self.table} where {reported} were reported: the batch must run again."
            )

    def _upsert(
        self, conn: psycopg.Connection[Any], table: sql.Composable, memory: _Memory, attempt: AttemptRef
    ) -> int:
        incoming = sql.Identifier("pg_temp", f"in_{attempt.mark}")
        conn.execute(
            sql.SQL("create temporary table {} on commit drop as select {} from {} with no data").format(
                sql.Identifier(f"in_{attempt.mark}"), _names(c.name for c in memory.columns), table
            )
        )
        self._fill(conn, incoming, memory)
        nulls = sql.SQL(" or ").join(sql.SQL("{} is null").format(sql.Identifier(k)) for k in self.key)
        count = sql.SQL("select count(*) from {} where {}").format(incoming, nulls)
        cursor = conn.cursor(row_factory=tuple_row)  # whatever rows the caller likes
        (without,) = cursor.execute(count).fetchone() or (0,)
        if without:
            raise SinkKeyMissing(f"{without} rows for {self.table} have no {', '.join(self.key)}: filter them out.")
        assert self.order is not None
        statement = target.upsert(table, incoming, [c.name for c in memory.columns], self.key, self.order)
        published = conn.execute(statement).rowcount
        conn.execute(sql.SQL("drop table {}").format(incoming))
        return published

    def discard(self, conn: psycopg.Connection[Any], attempt: AttemptRef) -> None:
        discard_staging(conn, staging_prefix(attempt.mark))


def discard_staging(conn: psycopg.Connection[Any], prefix: str) -> None:
    """Drop an attempt's staging tables, by the prefix that its location has."""
    for name in _staging_tables(conn):
        if name.startswith(prefix):
            conn.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(STAGING_SCHEMA, name)))


def staged_marks(conn: psycopg.Connection[Any]) -> set[str]:
    """The attempts that have staging tables, also such as a late executor made after its attempt was discarded."""
    return {name.split("_")[1] for name in _staging_tables(conn) if name.startswith("a_")}


def _staging_tables(conn: psycopg.Connection[Any]) -> list[str]:
    found = conn.execute(
        "select c.relname from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = %s and c.relkind = 'r'",
        (STAGING_SCHEMA,),
    )
    return [name for (name,) in found]


def _names(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)
