"""Arrow tables into Postgres: types, tables, COPY."""

from __future__ import annotations

import io
import json
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg import sql

from pg_pipeline.errors import InvalidInput


def postgres_columns(schema: pa.Schema) -> dict[str, str]:
    """Name and Postgres type of each column."""
    return {field.name: _type(field) for field in schema}


def create_like(
    conn: psycopg.Connection[Any],
    table: sql.Identifier,
    columns: dict[str, str],
    *,
    temporary: bool = False,
    index: str | None = None,
) -> None:
    """Create the table where there is none; a table that is there must take the rows as it is."""
    if conn.execute("select to_regclass(%s)", (table.as_string(conn),)).fetchone() != (None,):
        return
    if not temporary and len(table._obj) == 2:
        schema = table._obj[0]
        if conn.execute("select to_regnamespace(quote_ident(%s))", (schema,)).fetchone() == (None,):
            conn.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
    parts = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns.items()]
    kind = sql.SQL("temporary table" if temporary else "table")
    conn.execute(sql.SQL("create {} {} ({})").format(kind, _place(table, temporary), sql.SQL(", ").join(parts)))
    if index is not None:
        conn.execute(sql.SQL("create index on {} ({})").format(table, sql.Identifier(index)))


def copy_in(conn: psycopg.Connection[Any], table: sql.Identifier, rows: pa.Table) -> None:
    names = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
    statement = sql.SQL("copy {} ({}) from stdin (format csv)").format(table, names)
    with conn.cursor().copy(statement) as copy:
        for batch in pa.table({name: _plain(rows.column(name)) for name in rows.column_names}).to_batches(50_000):
            text = io.BytesIO()
            pa_csv.write_csv(batch, text, pa_csv.WriteOptions(include_header=False))
            copy.write(text.getvalue())


def _place(table: sql.Identifier, temporary: bool) -> sql.Identifier:
    return sql.Identifier(table._obj[-1]) if temporary else table


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """What CSV can carry: bytes as hex, nested values as JSON."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array([None if v is None else "\\x" + v.hex() for v in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        values = column.to_pylist()
        return pa.array([None if v is None else json.dumps(v, default=str) for v in values], pa.string())
    return column


_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "integer",
    pa.uint32(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.null(): "text",
}


def _type(field: pa.Field) -> str:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytea"
    if pa.types.is_nested(kind):
        return "jsonb"
    if pa.types.is_time(kind):
        return "time"
    if pa.types.is_date(kind):
        return "timestamp without time zone"
    raise InvalidInput(f"The column {field.name!r} is {kind}, which has no type in Postgres: cast it first.")
