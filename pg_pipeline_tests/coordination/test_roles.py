"""Who may do what: least privilege from the first migration on."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pg_pipeline.coordination import dead_letters, executions, reaper, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish
from pg_pipeline.coordination.worker import Worker
from pg_pipeline_tests.coordination.conftest import files

ROLES = ("pipeline_reader", "pipeline_submitter", "pipeline_worker", "pipeline_operator")
TABLES = (
    "select c.oid::regclass::text from pg_class c "
    "where relnamespace = 'pipeline'::regnamespace and relkind in ('r', 'v', 'S')"
)
FUNCTIONS = "select p.oid::regprocedure::text, p.proname from pg_proc p where pronamespace = 'pipeline'::regnamespace"


@pytest.fixture
def stranger(conn: psycopg.Connection[Any]) -> str:
    """A login of no role. Logins are the cluster's, so its name is this database's."""
    name = "stranger_" + conn.info.dbname
    conn.execute(sql.SQL("create role {}").format(sql.Identifier(name)))
    yield name
    conn.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


def test_public_can_do_nothing(conn: psycopg.Connection[Any], stranger: str) -> None:
    assert not conn.execute("select has_schema_privilege(%s, 'pipeline', 'usage')", (stranger,)).fetchone()[0]
    for (table,) in conn.execute(TABLES).fetchall():
        assert not conn.execute(
            "select has_table_privilege(%s, %s, 'select, insert, update, delete, truncate, references, trigger')",
            (stranger, table),
        ).fetchone()[0], table
    for function, _ in conn.execute(FUNCTIONS).fetchall():
        assert not conn.execute("select has_function_privilege(%s, %s, 'execute')", (stranger, function)).fetchone()[
            0
        ], function


@pytest.mark.parametrize("role", ROLES)
def test_no_role_writes_a_table_but_through_functions(conn: psycopg.Connection[Any], role: str) -> None:
    for (table,) in conn.execute(TABLES).fetchall():
        for right in ("insert", "update", "delete", "truncate", "trigger", "references"):
            answer = conn.execute("select has_table_privilege(%s, %s, %s)", (role, table, right)).fetchone()
            assert not answer[0], (table, right)


@pytest.mark.parametrize("role", [*ROLES, "pipeline_owner"])
def test_nobody_logs_in_as_a_role_of_ours(conn: psycopg.Connection[Any], role: str) -> None:
    row = conn.execute(
        "select rolcanlogin, rolsuper, rolcreaterole from pg_roles where rolname = %s", (role,)
    ).fetchone()
    assert row == (False, False, False)


def test_inner_functions_are_nobodys_and_doors_are_few(conn: psycopg.Connection[Any]) -> None:
    for function, name in conn.execute(FUNCTIONS).fetchall():
        holders = {
            role
            for role in ROLES
            if conn.execute("select has_function_privilege(%s, %s, 'execute')", (role, function)).fetchone()[0]
        }
        assert bool(holders) != name.startswith("_"), (function, holders)


def test_every_function_is_owned_by_the_owner_with_a_pinned_search_path(conn: psycopg.Connection[Any]) -> None:
    rows = conn.execute(
        "select p.proname, pg_get_userbyid(p.proowner), p.prokind, p.proconfig, "
        "p.prosqlbody is not null and not p.prosecdef from pg_proc p where pronamespace = 'pipeline'::regnamespace"
    ).fetchall()
    assert rows
    for name, owner, kind, configuration, resolved_when_made in rows:
        assert owner == "pipeline_owner", name
        if kind != "a" and not resolved_when_made:
            assert "search_path=pg_catalog, pg_temp" in (configuration or ()), name


def test_each_role_can_do_its_own_work_and_not_the_others(conn: psycopg.Connection[Any], db: Database) -> None:
    calls = {
        "pipeline_reader": "select * from pipeline.audit()",
        "pipeline_submitter": "select pipeline.submit('orders', 'k', array['/a'], array['1'], array[1::bigint])",
        "pipeline_worker": "select pipeline.register_worker(gen_random_uuid(), 'default', 'w')",
        "pipeline_operator": "select pipeline.pause('default', 'x')",
    }
    for role in ROLES:
        for owner, call in calls.items():
            with conn.transaction(force_rollback=True):
                conn.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
                allowed = owner in (role, "pipeline_reader")
                if allowed:
                    conn.execute(call.encode())
                else:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
                        conn.execute(call.encode())


def test_shadowed_operators_and_functions_of_a_caller_change_nothing(
    conn: psycopg.Connection[Any], db: Database
) -> None:
    conn.execute("create schema evil; grant usage, create on schema evil to pipeline_submitter")
    conn.execute(
        "create function evil.sha256(bytea) returns bytea language sql as $$ select '\\x00'::bytea $$;"
        "create function evil.length(text) returns int language sql as $$ select 1 / 0 $$;"
        "create function evil.eq(text, text) returns boolean language sql as $$ select true $$;"
        "create operator evil.= (leftarg = text, rightarg = text, function = evil.eq);"
        "grant execute on all functions in schema evil to public"
    )
    with conn.transaction():
        conn.execute("set local role pipeline_submitter")
        conn.execute("set local search_path = evil, pg_catalog")
        conn.execute("select pipeline.submit('orders', 'k', array['/a', '/b'], array['1', '1'], array[1, 1]::bigint[])")
    assert conn.execute("select count(distinct key) from pipeline.file").fetchone() == (2,)


def test_a_temporary_table_can_not_stand_in_for_ours(conn: psycopg.Connection[Any], db: Database) -> None:
    conn.execute("create temporary table task (id bigint); create temporary table execution (id bigint)")
    conn.execute("select pipeline.submit('orders', 'k', array['/a'], array['1'], array[1::bigint])")
    assert conn.execute("select count(*) from pipeline.task").fetchone() == (1,)


def test_the_token_of_a_living_lease_is_its_workers_secret(conn: psycopg.Connection[Any], db: Database) -> None:
    conn.execute("select pipeline.submit('orders', 'k', array['/a'], array['1'], array[1::bigint])")
    conn.execute("select pipeline.register_worker('00000000-0000-0000-0000-000000000001', 'default', 'w')")
    conn.execute("select pipeline.claim('00000000-0000-0000-0000-000000000001', gen_random_uuid())")
    for role in ROLES:
        for column in ("task.token", "task.claim_id", "outbox.token"):
            table, name = column.split(".")
            asked = (role, f"pipeline.{table}", name)
            answer = conn.execute("select has_column_privilege(%s, %s, %s, 'select')", asked)
            assert answer.fetchone() == (False,), (role, column)
    assert conn.execute("select token from pipeline.attempt_status").fetchall() == [(None,)]


@pytest.fixture
def login(conn: psycopg.Connection[Any], dsn: str) -> Iterator[Callable[[str], Database]]:
    """A database as a login of its own sees it, that has one role and nothing else."""
    opened: list[tuple[str, Database]] = []

    def make(role: str) -> Database:
        name = f"{role}_{conn.info.dbname}"
        conn.execute(
            sql.SQL("create role {} login in role {}").format(sql.Identifier(name), sql.Identifier(f"pipeline_{role}"))
        )
        opened.append((name, Database(make_conninfo(dsn, user=name))))
        return opened[-1][1]

    yield make
    for name, database in opened:
        database.close()
        conn.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


@pytest.mark.own_session  # the pooler of these tests logs everybody in as one
def test_each_role_as_a_login_of_its_own_does_its_part_from_submit_to_end(login: Callable[[str], Database]) -> None:
    operator, submitter, working, reader = (login(role) for role in ("operator", "submitter", "worker", "reader"))
    submission.configure_queue(operator, "default", backoff_base="0 s", backoff_cap="0 s", breaker_after=0)
    submission.register_pipeline(operator, "orders", batch_files=2)
    execution = submission.submit(submitter, "orders", files(6), request_key="k").execution
    with Worker(working) as one:
        for lease in one.claim(3):
            one.note_output(lease, "sink", {"table": "t"})
            assert len(one.files(lease)) == 2
            if lease.batch == 1:
                one.fail(lease, "refused", retryable=False)
            else:
                one.finish(lease, {"rows_in": 2})
        assert executions.get(reader, execution)["status"] == "blocked"
        (letter,) = dead_letters.listed(reader)
        dead_letters.replay(operator, letter["id"])
        (lease,) = one.claim()
        (callback,) = one.finish_and_claim(lease, {"rows_in": 2})[1]
        one.finish(callback, {"summary": {"rows": 6}})
        executions.rerun(operator, execution, [0])
        while leases := one.claim(10):
            one.finish_many([Finish(lease, {}) for lease in leases])
        assert reaper.reap(working, lambda _sink, _attempt, _location: None).counts["outputs_discarded"] == 1
    assert executions.get(reader, execution)["status"] == "finished"
    assert (executions.audit(reader), len(executions.attempts(reader, execution))) == ([], 7)
    assert executions.explain(reader, execution)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        executions.cancel(reader, execution, "not mine to say")
