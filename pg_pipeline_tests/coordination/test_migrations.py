"""Migrations: each whole or not at all, one at a time, and never guessing where files and database disagree."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pg_pipeline.coordination.migrations import MigrationState, check, migrate
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import DatabaseUnreachable, MigrationError
from pg_pipeline.sqlfiles import sql_root
from pg_pipeline_tests.helpers import ChildProcess, wait_until

MIGRATE = """
import sys
from pathlib import Path
from pg_pipeline.coordination.migrations import migrate
migrate(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A small SQL folder to play with."""
    for folder in ("migrations", "functions"):
        (tmp_path / folder).mkdir()
    put(tmp_path, "migrations/0001_one.sql", "create schema pipeline; create table pipeline.one (id int);")
    put(tmp_path, "migrations/0002_two.sql", "create table pipeline.two (id int);")
    put(tmp_path, "functions/answer.sql", answer(1))
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)


def answer(value: int) -> str:
    return f"create or replace function pipeline.answer() returns int language sql as 'select {value}';"


def value(dsn: str, query: bytes) -> Any:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(query).fetchone()
    assert row is not None
    return row[0]


def exists(dsn: str, table: str) -> bool:
    with psycopg.connect(dsn) as conn:
        return conn.execute("select to_regclass(%s) is not null", (table,)).fetchone() == (True,)


def test_files_are_applied_once_and_in_order(empty_dsn: str, files: Path) -> None:
    assert check(empty_dsn, files) == MigrationState((), ("0001_one", "0002_two", "functions"))
    assert not exists(empty_dsn, "pipeline.schema_migration"), "a check changed something"
    assert migrate(empty_dsn, files) == ["0001_one", "0002_two", "functions"]
    assert migrate(empty_dsn, files) == []
    assert check(empty_dsn, files) == MigrationState(("0001_one", "0002_two"), ())
    assert value(empty_dsn, b"select pipeline.answer()") == 1


def test_our_own_files_apply_to_an_empty_database(empty_dsn: str) -> None:
    assert migrate(empty_dsn)[-1] == "functions"
    assert check(empty_dsn).current


def test_a_new_migration_and_its_functions_appear_together(empty_dsn: str, files: Path) -> None:
    migrate(empty_dsn, files)
    put(files, "migrations/0003_three.sql", "drop function pipeline.answer(); create table pipeline.three (id int);")
    put(files, "functions/answer.sql", "create function pipeline.answer() returns text language sql as 'select ''x''';")
    put(
        files, "functions/broken.sql", "create function pipeline.broken() returns int language sql as 'select nothing';"
    )
    with pytest.raises(MigrationError, match="rolled back"):
        migrate(empty_dsn, files)
    assert value(empty_dsn, b"select pipeline.answer()") == 1
    assert not exists(empty_dsn, "pipeline.three")
    (files / "functions/broken.sql").unlink()
    assert migrate(empty_dsn, files) == ["0003_three", "functions"]
    assert value(empty_dsn, b"select pipeline.answer()") == "x"


def test_functions_are_applied_again_when_one_changed(empty_dsn: str, files: Path) -> None:
    migrate(empty_dsn, files)
    put(files, "functions/answer.sql", answer(2))
    assert check(empty_dsn, files).pending == ("functions",)
    assert migrate(empty_dsn, files) == ["functions"]
    assert value(empty_dsn, b"select pipeline.answer()") == 2


def test_grants_come_after_every_function(empty_dsn: str, files: Path) -> None:
    put(
        files,
        "functions/zebra.sql",
        "create or replace function pipeline.zebra() returns int language sql as 'select 1';",
    )
    put(files, "grants.sql", "revoke execute on function pipeline.zebra() from public;")
    assert migrate(empty_dsn, files)[-1] == "functions"
    assert value(empty_dsn, b"select not has_function_privilege('public', 'pipeline.zebra()', 'execute')")


def test_a_failing_migration_leaves_nothing_of_itself(empty_dsn: str, files: Path) -> None:
    put(files, "migrations/0002_two.sql", "create table pipeline.two (id int); select 1 / 0;")
    with pytest.raises(MigrationError, match="division by zero"):
        migrate(empty_dsn, files)
    assert check(empty_dsn, files) == MigrationState(("0001_one",), ("0002_two", "functions"))
    assert not exists(empty_dsn, "pipeline.two")


def test_an_edited_old_file_is_refused(empty_dsn: str, files: Path) -> None:
    migrate(empty_dsn, files)
    put(files, "migrations/0001_one.sql", "create schema pipeline; create table pipeline.one (id bigint);")
    put(files, "functions/answer.sql", answer(2))
    for act in (migrate, check):
        with pytest.raises(MigrationError, match="0001_one was edited"):
            act(empty_dsn, files)
    assert value(empty_dsn, b"select pipeline.answer()") == 1


def test_line_ends_are_not_an_edit(empty_dsn: str, files: Path) -> None:
    put(files, "migrations/0002_two.sql", "create table pipeline.two (id int);\n-- end\n")
    migrate(empty_dsn, files)
    (files / "migrations/0002_two.sql").write_bytes(b"create table pipeline.two (id int);\r\n-- end\r\n")
    assert check(empty_dsn, files).current


def test_a_database_too_new_is_left_alone(empty_dsn: str, files: Path) -> None:
    """Old code must not put its old functions over the new ones."""
    put(files, "migrations/0003_three.sql", "create table pipeline.three (id int);")
    migrate(empty_dsn, files)
    (files / "migrations/0003_three.sql").unlink()
    put(files, "functions/answer.sql", answer(2))
    for act in (migrate, check):
        with pytest.raises(MigrationError, match="newer pg_pipeline"):
            act(empty_dsn, files)
    assert value(empty_dsn, b"select pipeline.answer()") == 1


@pytest.mark.parametrize("name", ["0004_gap.sql", "0002_again.sql", "two.sql"])
def test_misnumbered_files_are_refused(empty_dsn: str, files: Path, name: str) -> None:
    put(files, f"migrations/{name}", "select 1;")
    with pytest.raises(MigrationError, match=r"numbered|named"):
        migrate(empty_dsn, files)


@pytest.mark.parametrize("name", ["migrations/0002_two.sql", "functions/answer.sql"])
def test_a_file_that_ends_its_transaction_never_runs(empty_dsn: str, files: Path, name: str) -> None:
    put(files, name, "create table pipeline.half (id int);\ncommit;\n")
    with pytest.raises(MigrationError, match="ends the transaction"):
        migrate(empty_dsn, files)
    assert not exists(empty_dsn, "pipeline.one")


def test_a_file_may_act_as_another_role(empty_dsn: str, files: Path) -> None:
    """The bookkeeping afterwards is written by the login that migrates, whatever role the file took."""
    put(files, "migrations/0002_two.sql", "set local role pg_monitor; set local search_path = nowhere;")
    assert migrate(empty_dsn, files) == ["0001_one", "0002_two", "functions"]


def test_many_at_once_apply_each_file_once(empty_dsn: str, files: Path) -> None:
    results = together([lambda: migrate(empty_dsn, files) for _ in range(8)])
    assert sorted(name for result in results for name in result) == ["0001_one", "0002_two", "functions"]


@pytest.mark.system("pgbouncer")
def test_many_at_once_through_a_pooler_apply_each_file_once(
    empty_dsn: str, files: Path, pooled: Callable[[str], str]
) -> None:
    """A lock of the session would be held by whichever connection the pooler lent."""
    results = together([lambda: migrate(pooled(empty_dsn), files) for _ in range(8)])
    assert sorted(name for result in results for name in result) == ["0001_one", "0002_two", "functions"]


def test_many_databases_of_one_cluster_migrate_at_once(
    server: EmbeddedServer, new_database: Callable[..., str]
) -> None:
    """Roles belong to the whole cluster: without care this ends in 'tuple concurrently updated'."""
    dsns = [server.dsn(new_database()) for _ in range(6)]
    results = together([lambda dsn=dsn: migrate(dsn) for dsn in dsns])  # type: ignore[misc]
    assert all(result[-1] == "functions" for result in results)
    assert all(check(dsn).current for dsn in dsns)


SLEEPING = b"select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
WAITING = b"select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
WAITING_IN_LINE = (
    b"select count(*) from pg_stat_activity where wait_event = 'advisory' and datname = current_database()"
)
END_SLEEPERS = b"""
select count(pg_terminate_backend(pid)) from pg_stat_activity
where wait_event = 'PgSleep' and datname = current_database()
"""


def test_a_second_migration_waits_for_the_first(
    empty_dsn: str, files: Path, child: Callable[..., ChildProcess]
) -> None:
    put(files, "migrations/0002_two.sql", "create table pipeline.two (id int); select pg_sleep(600);")
    first = child(MIGRATE, empty_dsn, str(files))
    wait_until(lambda: value(empty_dsn, SLEEPING) == 1, what="the first to be in the middle of its second file")
    put(files, "migrations/0002_two.sql", "create table pipeline.two (id int);")
    second = child(MIGRATE, empty_dsn, str(files))
    wait_until(lambda: value(empty_dsn, WAITING_IN_LINE) == 1, what="the second to stand in line")
    value(empty_dsn, END_SLEEPERS)
    assert first.wait() == 1
    assert second.wait() == 0, second.stderr
    assert check(empty_dsn, files).current


def test_a_neighbours_change_of_a_shared_role_is_waited_out(
    empty_dsn: str, server: EmbeddedServer, files: Path
) -> None:
    """Roles belong to the whole cluster: Postgres answers 'tuple concurrently updated', and we start over."""
    role = f"role_{uuid.uuid4().hex[:12]}"
    change = sql.SQL("alter role {} connection limit {}")
    with psycopg.connect(server.dsn("postgres")) as neighbour, ThreadPoolExecutor(1) as pool:
        neighbour.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
        neighbour.commit()
        put(files, "migrations/0002_two.sql", change.format(sql.Identifier(role), 7).as_string())
        neighbour.execute(change.format(sql.Identifier(role), 5))
        migrating = pool.submit(migrate, empty_dsn, files)
        wait_until(lambda: value(empty_dsn, WAITING) == 1, what="the migration to wait for its neighbour")
        neighbour.commit()
        assert migrating.result() == ["0001_one", "0002_two", "functions"]
        neighbour.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_killed_in_the_middle_it_is_whole_or_not_at_all(
    empty_dsn: str, files: Path, child: Callable[..., ChildProcess]
) -> None:
    put(files, "migrations/0002_two.sql", "create table pipeline.two (id int); select pg_sleep(600);")
    migrating = child(MIGRATE, empty_dsn, str(files))
    wait_until(lambda: value(empty_dsn, SLEEPING) == 1, what="the migration to be in the middle of its second file")
    migrating.kill9()
    value(empty_dsn, END_SLEEPERS)  # the server would notice the dead client only at the end of its sleep
    assert check(empty_dsn, files).applied == ("0001_one",)
    put(files, "migrations/0002_two.sql", "create table pipeline.two (id int);")
    assert migrate(empty_dsn, files) == ["0002_two", "functions"]


def test_a_login_without_the_right_to_create_roles_is_told(
    server: EmbeddedServer, new_database: Callable[..., str]
) -> None:
    database = new_database()
    fresh = database.replace("test_", "role_")
    with psycopg.connect(server.dsn(database), autocommit=True) as conn:
        conn.execute(sql.SQL("create role {} login").format(sql.Identifier(fresh)))
        try:
            with pytest.raises(MigrationError, match=f"The login {fresh} may not .* CREATEROLE"):
                migrate(server.dsn(database).replace("postgres@", f"{fresh}@"))
            assert not exists(server.dsn(database), "pipeline.schema_migration")
        finally:
            conn.execute(sql.SQL("drop role {}").format(sql.Identifier(fresh)))


def test_a_login_that_is_no_superuser_can_migrate_and_migrate_again(
    server: EmbeddedServer, new_database: Callable[..., str], tmp_path: Path
) -> None:
    database = new_database()
    login = database.replace("test_", "role_")
    with psycopg.connect(server.dsn(database), autocommit=True) as conn:
        conn.execute(sql.SQL("create role {} login createrole").format(sql.Identifier(login)))
        conn.execute(
            sql.SQL("grant create on database {} to {}").format(sql.Identifier(database), sql.Identifier(login))
        )
        # Another database of the cluster has made our roles already; then an administrator must let the login in.
        if conn.execute("select from pg_roles where rolname = 'pipeline_owner'").fetchone() is not None:
            conn.execute(sql.SQL("grant pipeline_owner to {} with admin option").format(sql.Identifier(login)))
    dsn = server.dsn(database).replace("postgres@", f"{login}@")
    assert migrate(dsn)[-1] == "functions"
    copy = tmp_path / "sql"
    copy_tree(sql_root(), copy)
    put(copy, "functions/zz_more.sql", answer(3))
    assert migrate(dsn, copy) == ["functions"]


def test_an_unreachable_server_is_named_without_the_password(files: Path) -> None:
    with pytest.raises(DatabaseUnreachable, match=r"127\.0\.0\.1:1/nowhere") as caught:
        migrate("postgresql://me:secret@127.0.0.1:1/nowhere", files)
    assert "secret" not in str(caught.value)


def copy_tree(source: Path, target: Path) -> None:
    for path in source.rglob("*.sql"):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path.read_text())


def together(acts: list[Callable[[], list[str]]]) -> list[list[str]]:
    """Run them in threads that start at the same moment."""
    line = threading.Barrier(len(acts))

    def run(act: Callable[[], list[str]]) -> list[str]:
        line.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))
