"""The role matrix: every table and every function, for every role, as it is meant and as it is."""

from typing import Any

import psycopg
import pytest
from psycopg import sql

from pg_pipeline_tests.security.matrix import HIDDEN, PAGE, ROLES, may_call, page, table

FUNCTIONS = """
select p.oid::regprocedure::text, p.proname, p.prokind,
       array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a(t, n) order by n)
from pg_proc p where pronamespace = 'pipeline'::regnamespace order by 1
"""
RELATIONS = """
select c.relname, c.relkind, array(select a.attname::text from pg_attribute a
                                   where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum)
from pg_class c where relnamespace = 'pipeline'::regnamespace and relkind not in ('i', 'I') order by 1
"""
WRITES = ("insert", "update", "delete", "truncate", "references", "trigger", "maintain")


def test_the_table_in_the_docs_is_the_matrix() -> None:
    assert table() in PAGE.read_text(), "run python -m pg_pipeline_tests.security.matrix"
    assert page(PAGE.read_text()) == PAGE.read_text()


@pytest.mark.parametrize("role", ROLES)
def test_each_role_can_call_its_doors_and_is_refused_at_every_other(conn: psycopg.Connection[Any], role: str) -> None:
    for signature, name, kind, arguments in conn.execute(FUNCTIONS).fetchall():
        asked = conn.execute("select has_function_privilege(%s, %s, 'execute')", (role, signature)).fetchone()
        assert asked == (may_call(role, name),), (role, signature)
        if may_call(role, name) or kind != "f":
            continue
        # Not only said: tried.
        nulls = sql.SQL(", ").join(sql.SQL("null::" + kind) for kind in arguments)
        call = sql.SQL("select pipeline.{}({})").format(sql.Identifier(name), nulls)
        with conn.transaction(force_rollback=True):
            conn.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
            with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
                conn.execute(call)


@pytest.mark.parametrize("role", ROLES)
def test_each_role_can_read_what_it_may_and_write_nothing(conn: psycopg.Connection[Any], role: str) -> None:
    server = conn.info.server_version
    for name, kind, columns in conn.execute(RELATIONS).fetchall():
        relation = sql.Identifier("pipeline", name)
        if kind == "S":
            asked = conn.execute(
                "select has_sequence_privilege(%s, %s, 'usage, update')", (role, f"pipeline.{name}")
            ).fetchone()
            assert asked == (False,), (role, name)
            continue
        for right in WRITES:
            if right == "maintain" and server < 170000:
                continue
            asked = conn.execute("select has_table_privilege(%s, %s, %s)", (role, f"pipeline.{name}", right)).fetchone()
            assert asked == (False,), (role, name, right)
        with conn.transaction(force_rollback=True):
            conn.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
            for column in columns:
                look = sql.SQL("select {} from {} limit 0").format(sql.Identifier(column), relation)
                if column in HIDDEN.get(name, ()):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
                        conn.execute(look)
                else:
                    conn.execute(look)
            with pytest.raises(psycopg.Error), conn.transaction():
                conn.execute(sql.SQL("delete from {}").format(relation))


def test_only_workers_make_tables_in_staging_and_nobody_any_in_ours(conn: psycopg.Connection[Any]) -> None:
    for role in ROLES:
        asked = conn.execute(
            "select has_schema_privilege(%s, 'pipeline', 'create'), has_schema_privilege(%s, 'pipeline', 'usage'), "
            "has_schema_privilege(%s, 'pipeline_staging', 'create')",
            (role, role, role),
        ).fetchone()
        assert asked == (False, True, role == "pipeline_worker"), role
