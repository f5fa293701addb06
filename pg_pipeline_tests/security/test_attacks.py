"""The classic attacks, by people who have a login and a role and want more."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import AttemptRef
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost
from pg_pipeline.sinks.copying import STAGING_SCHEMA, CopyTask
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.security.matrix import ROLES

Login = Callable[..., str]
LOOT = """
create schema evil; grant usage on schema evil to public;
create table evil.loot (who text, session text);
grant insert on evil.loot to public;
create function evil.take() returns boolean language sql volatile as
  $$ insert into evil.loot values (current_user, session_user) returning true $$;
"""


@pytest.fixture
def login(conn: psycopg.Connection[Any], dsn: str) -> Iterator[Login]:
    """Makes logins with a role; gives their DSN."""
    made: list[str] = []

    def make(role: str | None, name: str = "one") -> str:
        user = f"{name}_{conn.info.dbname}"
        conn.execute(sql.SQL("create role {} login").format(sql.Identifier(user)))
        made.append(user)
        if role is not None:
            conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(user)))
        return make_conninfo(dsn, user=user)

    yield make
    for user in made:
        conn.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(user)))


def test_a_function_or_operator_in_a_callers_search_path_is_never_ours(
    conn: psycopg.Connection[Any], db: Database, login: Login
) -> None:
    """It would run with the rights of the owner."""
    conn.execute(LOOT)
    conn.execute(
        """
        create function evil.sha256(bytea) returns bytea language sql as
          $$ select pg_catalog.sha256($1) from (select evil.take()) t $$;
        create function evil.eq(text, text) returns boolean language sql as
          $$ select $1 operator(pg_catalog.=) $2 from (select evil.take()) t $$;
        create operator evil.= (leftarg = text, rightarg = text, function = evil.eq);
        create function evil.coalesced(jsonb, text) returns text language sql as
          $$ select $1 operator(pg_catalog.->>) $2 from (select evil.take()) t $$;
        create operator evil.->> (leftarg = jsonb, rightarg = text, function = evil.coalesced)
        """
    )
    with psycopg.connect(login("pipeline_submitter"), autocommit=True) as attacker:
        attacker.execute("set search_path = evil, pg_catalog")
        attacker.execute("select pipeline.submit('orders', 'k', array['/a'], array['1'], array[1::bigint])")
        attacker.execute('select pipeline.send(\'default\', \'[{"key": "k", "kind": "k"}]\')')
    assert conn.execute("select * from evil.loot").fetchall() == []


def test_a_type_of_the_temporary_schema_is_never_ours(
    conn: psycopg.Connection[Any], db: Database, login: Login
) -> None:
    """Without pg_temp at the end of the path it is looked through first: a domain there may call anything."""
    conn.execute(LOOT)
    with psycopg.connect(login("pipeline_submitter"), autocommit=True) as attacker:
        for kind in ("jsonb", "bytea", "timestamptz", "uuid", "text"):
            domain = sql.SQL("create domain pg_temp.{0} as pg_catalog.{0} check (evil.take())")
            attacker.execute(domain.format(sql.Identifier(kind)))
        attacker.execute("create temporary table task (id int); create temporary table execution (id int)")
        attacker.execute(
            "select pipeline.submit('orders', 'k', array['/a']::pg_catalog.text[], array['1']::pg_catalog.text[], "
            "array[1::bigint])"
        )
    assert conn.execute("select * from evil.loot").fetchall() == []
    assert conn.execute("select count(*) from pipeline.task").fetchone() == (1,)


def test_a_forged_token_finishes_fails_and_releases_nothing(
    conn: psycopg.Connection[Any], db: Database, submit: Callable[..., str], worker: Callable[..., Worker], login: Login
) -> None:
    submit(1)
    (lease,) = worker().claim()
    before = conn.execute("select t::text from pipeline.task t").fetchall()
    off_by_one = UUID(int=lease.token.int ^ 1)
    with psycopg.connect(login("pipeline_worker"), autocommit=True) as attacker:
        for token in (uuid4(), off_by_one, UUID(int=0), None):
            asked = (lease.task_id, token)
            assert attacker.execute("select pipeline.fail(%s, %s, 'x', 'x')->>'outcome'", asked).fetchone() in (
                ("lost",),
                (None,),
            )
            attacker.execute("select pipeline.release(%s, %s)", asked)
            attacker.execute("select pipeline.note_output(%s, %s, 'x', '{}')", asked)
            assert attacker.execute("select pipeline.lock_leases(array[%s], array[%s::uuid])", asked).fetchall() == []
            finished = attacker.execute(
                "select outcome from pipeline.finish(array[%s], array[%s::uuid], array['{}'::jsonb])", asked
            ).fetchall()
            assert ("committed",) not in finished
    assert conn.execute("select t::text from pipeline.task t").fetchall() == before
    assert conn.execute("select count(*) from pipeline.attempt_output").fetchone() == (0,)


@pytest.mark.parametrize("role", ROLES)
def test_nobody_can_read_the_token_of_a_living_lease_anywhere(
    conn: psycopg.Connection[Any],
    db: Database,
    dsn: str,
    submit: Callable[..., str],
    worker: Callable[..., Worker],
    login: Login,
    role: str,
) -> None:
    """Every column of every table and view that the role can read, the names of tables, and who runs what."""
    submit(1)
    one = worker()
    (lease,) = one.claim()
    sink = PostgresTable("public.rows")
    one.note_output(lease, sink.name, sink.location(lease.ref))
    _stage(dsn, lease.ref)
    token = lease.token
    with psycopg.connect(login(role), autocommit=True) as attacker:
        columns = attacker.execute(
            """select c.oid::regclass::text, array_agg(quote_ident(a.attname)) from pg_class c
               join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
               where c.relkind in ('r', 'v', 'm', 'p') and has_column_privilege(c.oid, a.attnum, 'select')
                 and (c.relnamespace in ('pipeline'::regnamespace, 'pipeline_staging'::regnamespace)
                      or c.relname in ('pg_class', 'pg_stat_activity', 'pg_locks'))
                 and has_schema_privilege(c.relnamespace, 'usage')
               group by 1"""
        ).fetchall()
        assert len(columns) > 15
        for table, names in columns:
            text = attacker.execute(f"select array_agg(row({', '.join(names)})::text)::text from {table}").fetchone()
            assert token.hex not in str(text).replace("-", ""), table
    one.release(lease)


def test_one_worker_can_not_finish_what_another_holds(
    conn: psycopg.Connection[Any], db: Database, submit: Callable[..., str], worker: Callable[..., Worker], login: Login
) -> None:
    """With the other's id, a claim in its name, and all that it may look at."""
    submit(1)
    victim = worker()
    (lease,) = victim.claim()
    with psycopg.connect(login("pipeline_worker"), autocommit=True) as attacker:
        (holder,) = attacker.execute("select worker from pipeline.task").fetchone() or (None,)
        got = attacker.execute("select token from pipeline.claim(%s, gen_random_uuid(), 10)", (holder,)).fetchall()
        assert lease.token not in [token for (token,) in got]
        mine = uuid4()
        attacker.execute("select pipeline.register_worker(%s, 'default', 'thief')", (mine,))
        assert attacker.execute("select * from pipeline.claim(%s, gen_random_uuid(), 10)", (mine,)).fetchall() == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            attacker.execute("select token from pipeline.task")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            attacker.execute("update pipeline.task set token = gen_random_uuid()")
    victim.finish(lease, {"rows_in": 1, "rows_out": 1})


def test_what_one_login_staged_another_can_discard_and_strangers_can_not(
    conn: psycopg.Connection[Any], login: Login
) -> None:
    one, other = login("pipeline_worker", "a"), login("pipeline_worker", "b")
    ref = AttemptRef("orders", "20261118-a1b2", 1, 0, uuid4())
    table = _stage(one, ref)
    for role, name in (("pipeline_submitter", "c"), ("pipeline_operator", "d"), (None, "e")):
        with psycopg.connect(login(role, name), autocommit=True) as attacker:
            for statement in ("select * from {}", "drop table {}", "insert into {} values (1)"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    attacker.execute(sql.SQL(statement).format(sql.Identifier(STAGING_SCHEMA, table)))
    with psycopg.connect(other, autocommit=True) as colleague:
        PostgresTable("public.rows").discard(colleague, ref)
    assert conn.execute("select to_regclass(%s)", (f"{STAGING_SCHEMA}.{table}",)).fetchone() == (None,)


def test_a_zombie_with_a_token_of_before_is_told_so(
    db: Database, submit: Callable[..., str], worker: Callable[..., Worker]
) -> None:
    submit(1)
    zombie, thief = worker(), worker()
    (lease,) = zombie.claim()
    db.rows("select pipeline.stop_worker(%s)", (zombie.id,))
    (stolen,) = thief.claim()
    assert stolen.token != lease.token
    with pytest.raises(LeaseLost):
        zombie.finish(lease, {"rows_in": 1, "rows_out": 1})
    thief.finish(stolen, {"rows_in": 1, "rows_out": 1})


def _stage(dsn: str, ref: AttemptRef) -> str:
    """What an executor does with much to say; without Spark, and empty."""
    from pg_pipeline.sinks.columns import Column

    task = CopyTask([Column("id", "bigint")], ref.execution, ref.batch, ref.mark, dsn, inline_bytes=0)
    name = f"{PostgresTable('public.rows').location(ref)['prefix']}1"
    task._copy(name, [])
    return name
