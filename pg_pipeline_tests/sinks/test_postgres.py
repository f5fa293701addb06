"""The Postgres sink beyond the common suite: types, upsert, evolution, staging, and tasks that run twice."""

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pg_pipeline.coordination.types import AttemptRef
from pg_pipeline.sinks import postgres
from pg_pipeline.sinks.copying import STAGING_SCHEMA, CopyTask
from pg_pipeline.sinks.errors import SinkKeyMissing, SinkSchemaMismatch, StagedRowsMissing, ValueRefused
from pg_pipeline.sinks.postgres import PostgresTable, staged_marks


def attempt(batch: int = 0, execution: str = "20261118-a1b2") -> AttemptRef:
    return AttemptRef("orders", execution, 1, batch, uuid.uuid4())


def write(sink: PostgresTable, df: Any, dsn: str, batch: int = 0) -> int:
    ref = attempt(batch)
    with psycopg.connect(dsn) as conn:
        sink.prepare(conn, df.schema)
    staged = sink.stage(df, ref, dsn)
    with psycopg.connect(dsn) as conn:
        return sink.publish(conn, staged, ref)


def staging_tables(conn: Any) -> list[str]:
    return [n for (n,) in conn.execute("select tablename from pg_tables where schemaname = %s", (STAGING_SCHEMA,))]


MOMENT = datetime(2026, 1, 31, 23, 59, 59, 123456)  # noqa: DTZ001
EPOCH, OLD = datetime(1970, 1, 1), datetime(1900, 1, 1)  # noqa: DTZ001
# Spark type, values, Postgres type, values as psycopg reads them where they differ
TYPES: list[tuple[str, list[Any], str, list[Any] | None]] = [
    ("boolean", [True, False, None], "boolean", None),
    ("byte", [-128, 127, None], "smallint", None),
    ("short", [-32768, 32767, None], "smallint", None),
    ("int", [-(2**31), 2**31 - 1, None], "integer", None),
    ("long", [-(2**63), 2**63 - 1, None], "bigint", None),
    ("float", [1.5, -0.25, None], "real", None),
    ("double", [1e-300, 1.7976931348623157e308, None], "double precision", None),
    ("decimal(5,2)", [Decimal("-999.99"), Decimal("0.10"), None], "numeric(5,2)", None),
    ("decimal(38,0)", [Decimal(10**38 - 1), Decimal(-(10**38) + 1), None], "numeric(38,0)", None),
    ("decimal(38,18)", [Decimal("12345678901234567890.123456789012345678"), Decimal(0), None], "numeric(38,18)", None),
    ("string", ["", "ünï 漢字 🙂 \t\n\"'\\", None], "text", None),
    ("binary", [b"", bytes(range(256)), None], "bytea", None),
    ("date", [date(1, 1, 1), date(9999, 12, 31), None], "date", None),
    (
        "timestamp",
        [MOMENT, EPOCH, None],
        "timestamp with time zone",
        [MOMENT.replace(tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), None],
    ),
    ("timestamp_ntz", [MOMENT, OLD, None], "timestamp without time zone", None),
    ("interval day to second", [timedelta(days=1, seconds=5), timedelta(microseconds=-1), None], "interval", None),
    ("array<int>", [[1, None, 3], [], None], "integer[]", None),
    ("array<byte>", [[1, None], [], None], "smallint[]", None),
    ("array<string>", [["a", None, "ü"], [""], None], "text[]", None),
    ("array<decimal(10,2)>", [[Decimal("1.50"), None], [], None], "numeric(10,2)[]", None),
    ("array<date>", [[date(2026, 1, 31), None], [], None], "date[]", None),
    ("array<timestamp>", [[MOMENT], [], None], "jsonb", [["2026-01-31T23:59:59.123456Z"], [], None]),
    ("array<timestamp_ntz>", [[MOMENT, None], [], None], "timestamp without time zone[]", None),
    ("array<double>", [[1.5, None], [], None], "double precision[]", None),
    ("array<boolean>", [[True, None], [], None], "boolean[]", None),
    ("array<array<int>>", [[[1], [], None], [], None], "jsonb", None),
    (
        "struct<a:int,b:string>",
        [(1, "ü"), (None, None), None],
        "jsonb",
        [{"a": 1, "b": "ü"}, {"a": None, "b": None}, None],
    ),
    ("array<struct<a:int>>", [[(1,), None], [], None], "jsonb", [[{"a": 1}, None], [], None]),
    (
        "struct<at:timestamp,here:timestamp_ntz,m:decimal(20,4)>",
        [(MOMENT, MOMENT, Decimal("1.5000")), None, None],
        "jsonb",
        [{"at": "2026-01-31T23:59:59.123456Z", "here": "2026-01-31T23:59:59.123456", "m": 1.5}, None, None],
    ),
    ("map<string,int>", [{"a": 1, "b": None}, {}, None], "jsonb", None),
]


@pytest.mark.parametrize("inline_bytes", [1 << 20, 0], ids=["driver", "executors"])
def test_every_common_type_comes_back_as_it_went(spark: Any, dsn: str, conn: Any, inline_bytes: int) -> None:
    names = [f"c{n}" for n in range(len(TYPES))]
    schema = ", ".join(f"{name} {kind}" for name, (kind, *_) in zip(names, TYPES, strict=True))
    rows = [tuple(values[i] for _, values, _, _ in TYPES) for i in range(3)]
    df = spark.createDataFrame(rows, schema)
    assert write(PostgresTable("types", inline_bytes=inline_bytes), df, dsn) == 3
    found = conn.execute(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = 'types'::regclass and attnum > 0"
    ).fetchall()
    assert {name: dict(found)[name] for name in names} == {n: t[2] for n, t in zip(names, TYPES, strict=True)}
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    conn.execute("set timezone to 'UTC'")
    got = conn.execute(sql.SQL("select {} from types order by c0 desc nulls last").format(columns)).fetchall()
    for column, (kind, values, _, back) in enumerate(TYPES):
        assert [row[column] for row in got] == (back or values), kind


def test_a_type_that_postgres_lacks_is_a_typed_error(spark: Any, dsn: str) -> None:
    df = spark.sql("select interval '1' year as span")
    with pytest.raises(SinkSchemaMismatch, match=r"span.*cast it"):
        write(PostgresTable("t"), df, dsn)


def test_a_text_that_postgres_cannot_hold_is_a_typed_error(spark: Any, dsn: str) -> None:
    with pytest.raises(ValueRefused, match="0x00"):
        write(PostgresTable("t"), spark.createDataFrame([("a\x00b",)], "t string"), dsn)


def test_odd_column_and_table_names_are_quoted(spark: Any, dsn: str, conn: Any) -> None:
    df = spark.createDataFrame([(1, 2)], '`sel ect` int, `a.b"c` int')
    write(PostgresTable('"Odd Schema"."da-ta"'), df, dsn)
    assert conn.execute('select "sel ect", "a.b""c" from "Odd Schema"."da-ta"').fetchall() == [(1, 2)]


@pytest.mark.parametrize("table", ["a.b.c", "", "a.", '"', "x; drop table y"])
def test_what_is_no_table_name_is_refused_or_quoted(spark: Any, dsn: str, conn: Any, table: str) -> None:
    if table == "x; drop table y":
        write(PostgresTable(table), spark.range(1), dsn)
        assert conn.execute('select id from "x; drop table y"').fetchall() == [(0,)]
    else:
        with pytest.raises(SinkSchemaMismatch):
            PostgresTable(table)


def test_an_existing_table_must_fit(spark: Any, dsn: str, conn: Any) -> None:
    conn.execute("create table t (id int, _execution text, _batch int)")
    with pytest.raises(SinkSchemaMismatch, match=r"t\.id is integer and the rows have bigint"):
        write(PostgresTable("t"), spark.range(1), dsn)
    conn.execute("drop table t; create table t (id bigint)")
    with pytest.raises(SinkSchemaMismatch, match="_execution"):
        write(PostgresTable("t", evolve=True), spark.range(1), dsn)
    conn.execute("drop table t; create table t (id bigint, must int not null, _execution text, _batch int)")
    with pytest.raises(SinkSchemaMismatch, match="must"):
        write(PostgresTable("t"), spark.range(1), dsn)
    conn.execute("alter table t alter must set default 7")
    write(PostgresTable("t"), spark.range(1), dsn)
    assert conn.execute("select id, must from t").fetchall() == [(0, 7)]


def test_new_columns_are_added_only_when_allowed(spark: Any, dsn: str, conn: Any) -> None:
    write(PostgresTable("t"), spark.createDataFrame([(1,)], "id int"), dsn, batch=0)
    wider = spark.createDataFrame([(2, "x")], "id int, name string")
    with pytest.raises(SinkSchemaMismatch, match=r"lacks the columns \['name'\]"):
        write(PostgresTable("t"), wider, dsn, batch=1)
    write(PostgresTable("t", evolve=True), wider, dsn, batch=1)
    write(PostgresTable("t", evolve=True), spark.createDataFrame([(3,)], "id int"), dsn, batch=2)
    assert conn.execute("select id, name from t order by id").fetchall() == [(1, None), (2, "x"), (3, None)]
    with pytest.raises(SinkSchemaMismatch, match=r"t\.name is text and the rows have integer"):
        write(PostgresTable("t", evolve=True), spark.createDataFrame([(4, 4)], "id int, name int"), dsn)


ROWS = [
    (1, 10, "a"),
    (1, 20, "b"),
    (1, 20, "c"),
    (2, None, "d"),
    (2, None, "e"),
    (3, 5, None),
    (3, None, "f"),
    (1, 15, "z"),
]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_upsert_keeps_the_latest_whatever_the_order_of_batches(
    spark: Any, dsn: str, conn: Any, order: list[int]
) -> None:
    sink = PostgresTable("t", mode="upsert", key="id", order="at")
    for batch in order:
        write(sink, spark.createDataFrame(ROWS[batch * 2 : batch * 2 + 2], "id int, at int, name string"), dsn, batch)
    assert conn.execute("select id, at, name from t order by id").fetchall() == [
        (1, 20, "c"),
        (2, None, "e"),
        (3, 5, None),
    ]


def test_upsert_refuses_rows_without_a_key(spark: Any, dsn: str, conn: Any) -> None:
    sink = PostgresTable("t", mode="upsert", key=("a", "b"), order="at")
    with pytest.raises(SinkKeyMissing, match="1 rows"):
        write(sink, spark.createDataFrame([(1, None, 1), (1, 2, 1)], "a int, b int, at int"), dsn)


@pytest.mark.parametrize(
    "settings", [{"mode": "upsert"}, {"mode": "upsert", "key": "id"}, {"key": "id"}, {"order": "id"}]
)
def test_an_upsert_needs_key_and_order(settings: Any) -> None:
    with pytest.raises(SinkSchemaMismatch):
        PostgresTable("t", **settings)


def test_upsert_into_a_table_without_that_key_is_refused(spark: Any, dsn: str, conn: Any) -> None:
    conn.execute("create table t (id bigint, at int, _execution text, _batch int)")
    with pytest.raises(SinkSchemaMismatch, match="unique index"):
        write(PostgresTable("t", mode="upsert", key="id", order="at"), spark.range(1).selectExpr("id", "1 at"), dsn)


class DyingTask(CopyTask):
    """Commits its rows and dies before it can report them, the first time."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        for result in super().__call__(batches):
            if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
                os._exit(1)
            yield result


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["executors", "driver"])
def test_a_task_that_dies_after_its_copy_does_not_double_a_row(
    spark: Any, dsn: str, conn: Any, monkeypatch: Any, inline_bytes: int
) -> None:
    monkeypatch.setattr(postgres, "CopyTask", DyingTask)
    sink, ref = PostgresTable("t", inline_bytes=inline_bytes), attempt()
    df = spark.range(0, 1000, 1, 2)
    sink.prepare(conn, df.schema)
    staged = sink.stage(df, ref, dsn)
    if inline_bytes == 0:
        assert len(staging_tables(conn)) == 4, "two tables that were reported and two that were not"
    with psycopg.connect(dsn) as finish:
        assert sink.publish(finish, staged, ref) == 1000
    assert conn.execute("select count(*), count(distinct id) from t").fetchone() == (1000, 1000)
    sink.discard(conn, ref)
    assert staging_tables(conn) == []


def test_the_executors_copy_only_what_is_too_much_for_the_driver(spark: Any, dsn: str, conn: Any) -> None:
    sink, ref = PostgresTable("t", inline_bytes=100_000), attempt()
    df = spark.range(0, 12_000, 1, 2).where("id < 6000 or id % 1000 = 0")
    sink.prepare(conn, df.schema)
    staged = sink.stage(df, ref, dsn)
    assert len(staging_tables(conn)) == 1, "one task had much, the other little"
    with psycopg.connect(dsn) as finish:
        assert sink.publish(finish, staged, ref) == 6006
    assert conn.execute("select count(*) from t").fetchone() == (6006,)
    assert staging_tables(conn) == [], "published staging tables are gone"


@pytest.mark.parametrize(
    "harm", ["delete from {} where id = 3", "truncate {}", "drop table {}", "insert into {} select * from {}"]
)
def test_staged_rows_that_are_not_what_was_reported_are_not_published(
    spark: Any, dsn: str, conn: Any, harm: str
) -> None:
    """A crash of Postgres empties unlogged tables."""
    sink, ref = PostgresTable("t", inline_bytes=0), attempt()
    df = spark.range(0, 10, 1, 1)
    sink.prepare(conn, df.schema)
    staged = sink.stage(df, ref, dsn)
    (table,) = staging_tables(conn)
    conn.execute(sql.SQL(harm).format(*[sql.Identifier(STAGING_SCHEMA, table)] * harm.count("{}")))
    with pytest.raises(StagedRowsMissing, match="10 were reported"), psycopg.connect(dsn) as finish:
        sink.publish(finish, staged, ref)
    assert conn.execute("select count(*) from t").fetchone() == (0,)


def test_what_dead_attempts_left_can_be_found_and_discarded(spark: Any, dsn: str, conn: Any) -> None:
    sink, dead, other = PostgresTable("t", inline_bytes=0), attempt(), attempt()
    sink.prepare(conn, spark.range(1).schema)
    for ref in (dead, other):
        sink.stage(spark.range(1), ref, dsn)
    assert staged_marks(conn) == {dead.mark, other.mark}
    sink.discard(conn, dead)
    assert staged_marks(conn) == {other.mark}


def test_two_batches_with_the_same_keys_do_not_deadlock(spark: Any, dsn: str, conn: Any) -> None:
    """Both transactions are open at once; the second waits for the first, key by key in one order."""
    import threading

    sink = PostgresTable("t", mode="upsert", key="id", order="at")
    staged = []
    for batch in range(2):
        ids = "id" if batch == 0 else "499 - id as id"
        df = spark.range(0, 500, 1, 1).selectExpr(ids, f"{batch} at")
        ref = attempt(batch)
        sink.prepare(conn, df.schema)
        staged.append((sink.stage(df, ref, dsn), ref))
    failures: list[BaseException] = []

    def finish(index: int) -> None:
        try:
            for _ in range(10):
                with psycopg.connect(dsn) as own:
                    sink.publish(own, *staged[index])
        except psycopg.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=finish, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert conn.execute("select count(*), min(at) from t").fetchone() == (500, 1)
