"""The target table of the Postgres sink: created, checked, evolved, and the upsert into it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from pg_pipeline.sinks.base import BATCH, EXECUTION
from pg_pipeline.sinks.columns import Column
from pg_pipeline.sinks.errors import SinkSchemaMismatch

_NAME = re.compile(r'^(?:"[^"]+"|[^".]+)(?:\.(?:"[^"]+"|[^".]+))?$')


def parts(table: str) -> tuple[str, ...]:
    if not _NAME.match(table):
        raise SinkSchemaMismatch(f"{table!r} is no table name: use table or schema.table.")
    return tuple(part.strip('"') for part in re.findall(r'"[^"]+"|[^".]+', table))


def identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*parts(table))


def prepare(
    conn: psycopg.Connection[Any], table: str, columns: Sequence[Column], *, key: Sequence[str], evolve: bool
) -> None:
    with conn.transaction():
        found = _found(conn, table)
        if found is None:
            # Two workers may be the first: the second waits here, and then finds the table.
            conn.execute("select pg_advisory_xact_lock(hashtextextended(%s, 2037))", (f"pg_pipeline {table}",))
            found = _found(conn, table)
        if found is None:
            _create(conn, table, columns, key)
            return
        new = _check(table, found, columns)
        if new and not evolve:
            raise SinkSchemaMismatch(
                f"{table} lacks the columns {[c.name for c in new]}: add them, or allow it with evolve=True."
            )
        for column in new:
            conn.execute(
                sql.SQL("alter table {} add column if not exists {} {}").format(
                    identifier(table), sql.Identifier(column.name), sql.SQL(column.type)
                )
            )
        _check_indexes(conn, table, key)


def _found(conn: psycopg.Connection[Any], table: str) -> dict[str, tuple[str, bool]] | None:
    """Column → (type, whether a row must bring it); None when there is no such table."""
    rows = conn.execute(
        "select a.attname, format_type(a.atttypid, a.atttypmod), "
        "a.attnotnull and not a.atthasdef and a.attidentity = '' "
        "from pg_catalog.pg_attribute a where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped",
        (_quoted(table),),
    ).fetchall()
    return {name: (kind, must) for name, kind, must in rows} or None


def _check(table: str, found: dict[str, tuple[str, bool]], columns: Sequence[Column]) -> list[Column]:
    """The columns that the table lacks; raises on any other difference."""
    new = [c for c in columns if c.name not in found]
    if any(c.name in (EXECUTION, BATCH) for c in new):
        raise SinkSchemaMismatch(
            f"{table} exists without {EXECUTION} text and {BATCH} integer, by which a re-run finds its rows: add them."
        )
    for column in columns:
        if column.name in found and not _same(found[column.name][0], column.type):
            raise SinkSchemaMismatch(
                f"{table}.{column.name} is {found[column.name][0]} and the rows have {column.type}: "
                "cast it in the transform, or change the table."
            )
    names = {c.name for c in columns}
    required = [name for name, (_, must) in found.items() if must and name not in names]
    if required:
        raise SinkSchemaMismatch(f"{table} requires the columns {required}, which the rows lack.")
    return new


def _same(found: str, wanted: str) -> bool:
    def plain(kind: str) -> str:
        kind = re.sub(r"^character varying(\(\d+\))?", "text", kind)
        return "numeric" if kind == "numeric" or (kind.startswith("numeric") and not kind.endswith("]")) else kind

    if found.startswith("numeric") and wanted.startswith("numeric") and plain(found) == plain(wanted):
        return _holds(found, wanted)
    return plain(re.sub(r"\(\d+,\d+\)(?=\[\])", "", found)) == plain(re.sub(r"\(\d+,\d+\)(?=\[\])", "", wanted))


def _holds(found: str, wanted: str) -> bool:
    """Whether numeric(p,s) of the table takes every value of the rows' type unrounded."""
    if found == "numeric":
        return True
    precision, scale = (int(n) for n in re.findall(r"\d+", found))
    p, s = (int(n) for n in re.findall(r"\d+", wanted))
    return scale >= s and precision - scale >= p - s


def _create(conn: psycopg.Connection[Any], table: str, columns: Sequence[Column], key: Sequence[str]) -> None:
    required = {EXECUTION, BATCH, *key}
    definitions = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(c.name), sql.SQL(c.type), sql.SQL(" not null" if c.name in required else "")
        )
        for c in columns
    ]
    if key:
        definitions.append(sql.SQL("primary key ({})").format(_list(key)))
    if len(parts(table)) == 2:
        # Asked first: `if not exists` wants the right to create schemas even when there is nothing to create.
        known = conn.execute("select to_regnamespace(quote_ident(%s))", (parts(table)[0],)).fetchone()
        if known is None or known[0] is None:
            conn.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(parts(table)[0])))
    conn.execute(sql.SQL("create table {} ({})").format(identifier(table), sql.SQL(", ").join(definitions)))
    conn.execute(sql.SQL("create index on {} ({})").format(identifier(table), _list([EXECUTION, BATCH])))


def _check_indexes(conn: psycopg.Connection[Any], table: str, key: Sequence[str]) -> None:
    """An upsert needs a unique index on exactly its key."""
    if not key:
        return
    rows = conn.execute(
        "select array_agg(a.attname::text order by a.attname) from pg_catalog.pg_index i "
        "join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey) "
        "where i.indrelid = to_regclass(%s) and i.indisunique and i.indpred is null group by i.indexrelid",
        (_quoted(table),),
    ).fetchall()
    if sorted(key) not in [names for (names,) in rows]:
        raise SinkSchemaMismatch(f"{table} has no unique index on ({', '.join(key)}), which upsert needs: create one.")


def upsert(
    table: sql.Composable, incoming: sql.Composable, names: Sequence[str], key: Sequence[str], order: str
) -> sql.Composed:
    """The greatest row per key wins, whichever batch comes first; equal orders are decided by the rows' content.

    Keys go in sorted, so that two batches cannot wait for each other.
    """
    data = [n for n in names if n not in (EXECUTION, BATCH, "_file")]
    rest = [n for n in names if n not in key]

    def content(alias: str) -> sql.Composed:
        row = sql.SQL(", ").join(sql.SQL("{}.{}").format(sql.Identifier(alias), sql.Identifier(n)) for n in data)
        return sql.SQL('row({})::text collate "C"').format(row)

    def place(alias: str) -> sql.Composed:
        column = sql.SQL("{}.{}").format(sql.Identifier(alias), sql.Identifier(order))
        return sql.SQL("{} is not null, {}, {}").format(column, column, content(alias))

    # With two nulls the comparison of rows is null, and the content decides.
    newer = sql.SQL("coalesce(({}) > ({}), {} > {})").format(
        place("excluded"), place("old"), content("excluded"), content("old")
    )
    ranked = sql.SQL(", ").join(
        [
            *(sql.SQL("i.{}").format(sql.Identifier(k)) for k in key),
            sql.SQL("i.{} desc nulls last").format(sql.Identifier(order)),
            sql.SQL("{} desc").format(content("i")),
        ]
    )
    return sql.SQL(
        "insert into {table} as old ({names}) select distinct on ({keys}) {names} from {incoming} i order by {ranked} "
        "on conflict ({conflict}) do update set {updates} where {newer}"
    ).format(
        table=table,
        names=_list(names),
        keys=sql.SQL(", ").join(sql.SQL("i.{}").format(sql.Identifier(k)) for k in key),
        incoming=incoming,
        ranked=ranked,
        conflict=_list(key),
        updates=sql.SQL(", ").join(
            sql.SQL("{} = excluded.{}").format(sql.Identifier(n), sql.Identifier(n)) for n in rest
        ),
        newer=newer,
    )


def _list(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(n) for n in names)


def _quoted(table: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts(table))
