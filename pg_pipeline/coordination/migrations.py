"""Brings a database's schema to what this release's SQL files say.

`sql/migrations/NNNN_name.sql` run once each, in order, and never change afterwards. `sql/functions/*.sql` and then
`sql/plans.sql` and `sql/grants.sql` are repeatable: all of them are applied again, as one, when any of them changed.
Every step is one transaction under an advisory lock; the last migration and the functions that go with it are the same
transaction.
"""

import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors as pg

from pg_pipeline.coordination import failpoints
from pg_pipeline.coordination.connect import connect
from pg_pipeline.errors import MigrationError
from pg_pipeline.sqlfiles import read_sql, sql_root

REPEATABLE = "functions"
_ENDS_TRANSACTION = re.compile(r"^(commit|rollback)\b", re.MULTILINE | re.IGNORECASE)
_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
# Roles belong to the whole cluster, so another database's migration can get in our way; then we start over.
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    text: str
    checksum: str


@dataclass(frozen=True, slots=True)
class MigrationState:
    """What a database has, and what it still lacks; `pending` names migrations and, at its end, `functions`."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]

    @property
    def current(self) -> bool:
        return not self.pending


@dataclass(frozen=True, slots=True)
class _Files:
    migrations: tuple[Migration, ...]
    repeatable: tuple[str, ...]
    repeatable_checksum: str


def migrate(dsn: str, sql: Path | None = None, *, timeout: int = 10) -> list[str]:
    """Apply what is missing; gives the names of what was applied, nothing when all was there."""
    files = _load(sql or sql_root())
    applied: list[str] = []
    with connect(dsn, timeout=timeout, autocommit=True) as conn:
        while step := _step_with_retries(conn, files):
            failpoints.hit("migration.after_commit")
            applied += step
    return applied


def check(dsn: str, sql: Path | None = None, *, timeout: int = 10) -> MigrationState:
    """Compare without changing anything; raises where the database and the files contradict each other."""
    files = _load(sql or sql_root())
    with connect(dsn, timeout=timeout) as conn, conn.transaction():
        return _state(conn, files)


def _load(root: Path) -> _Files:
    migrations = []
    for path in sorted((root / "migrations").glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path} is not named like 0001_name.sql: rename it.")
        text = _whole(path.stem, read_sql(f"migrations/{path.name}", root))
        migrations.append(Migration(int(match[1]), path.stem, text, _checksum(text)))
    versions = [migration.version for migration in migrations]
    if not versions or versions != list(range(1, len(versions) + 1)):
        raise MigrationError(
            f"The migrations in {root / 'migrations'} are not numbered 0001, 0002, … without gaps or repeats "
            f"({', '.join(m.name for m in migrations) or 'there are none'}): renumber them, or reinstall pg_pipeline."
        )
    names = [f"functions/{path.name}" for path in sorted((root / "functions").glob("*.sql"))]
    names += [name for name in ("plans.sql", "grants.sql") if (root / name).exists()]
    texts = tuple(_whole(name, read_sql(name, root)) for name in names)
    return _Files(tuple(migrations), texts, _checksum("\0".join((*names, *texts))))


def _whole(name: str, text: str) -> str:
    """Refuse a file that would end its own transaction half-way, before any of it has run."""
    if _ENDS_TRANSACTION.search(text):
        raise MigrationError(f"{name} ends the transaction that it runs in: take its commit or rollback out.")
    return text


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _state(conn: psycopg.Connection[Any], files: _Files) -> MigrationState:
    rows: list[tuple[int, str, str]] = []
    repeatable = None
    if _fetch(conn, "exists")[0][0]:
        rows = [(version, name, checksum) for version, name, checksum in _fetch(conn, "applied")]
        repeatable = next((row[0] for row in _fetch(conn, "repeatable")), None)
    known = {migration.version: migration for migration in files.migrations}
    for version, name, checksum in rows:
        if version not in known:
            raise MigrationError(
                f"The database was migrated to {name} by a newer pg_pipeline, and this one knows nothing after "
                f"{files.migrations[-1].name}: upgrade pg_pipeline."
            )
        if known[version].checksum != checksum:
            raise MigrationError(
                f"Migration {name} was edited after it was applied to this database: restore the file, "
                "and put the change into a new migration."
            )
    done = {version for version, _, _ in rows}
    pending = [migration.name for migration in files.migrations if migration.version not in done]
    if repeatable != files.repeatable_checksum:
        pending.append(REPEATABLE)
    return MigrationState(tuple(name for _, name, _ in rows), tuple(pending))


def _step_with_retries(conn: psycopg.Connection[Any], files: _Files) -> list[str]:
    for attempt in range(1, _TRIES + 1):
        try:
            return _step(conn, files)
        except (pg.UniqueViolation, pg.DuplicateObject, pg.DeadlockDetected, pg.InternalError_) as error:
            if attempt == _TRIES or not _made_by_a_neighbour(error):
                raise _failed(error) from error
            time.sleep(0.05 * attempt)
        except pg.LockNotAvailable:
            raise MigrationError(
                "Another migration, or a long transaction, holds this database's schema for over a minute: "
                "wait for it to end, then migrate again."
            ) from None
        except pg.InsufficientPrivilege as error:
            raise MigrationError(
                f"The login {conn.info.user} may not do what the migration needs ({_first_line(error)}): "
                "migrate as a superuser, or as a login with CREATEROLE and the right to create in the database."
            ) from None
        except psycopg.OperationalError as error:
            raise MigrationError(f"The migration was interrupted ({_first_line(error)}): migrate again.") from None
        except psycopg.Error as error:
            raise _failed(error) from error
    raise AssertionError("unreachable")


def _made_by_a_neighbour(error: psycopg.Error) -> bool:
    if isinstance(error, pg.DeadlockDetected):
        return True
    if isinstance(error, pg.InternalError_):
        return "tuple concurrently" in str(error)
    return (error.diag.schema_name or "pg_catalog") == "pg_catalog"


def _step(conn: psycopg.Connection[Any], files: _Files) -> list[str]:
    """The next transaction of the way: what it applied, or nothing at the end of it."""
    with conn.transaction():
        _fetch(conn, "lock")
        pending = _state(conn, files).pending
        applied = []
        for migration in files.migrations:
            if migration.name in pending:
                _apply(conn, migration.text)
                if migration.version == 1:
                    _execute(conn, read_sql("bookkeeping/create.sql"))
                conn.execute(
                    read_sql("bookkeeping/record_migration.sql"),
                    {"version": migration.version, "name": migration.name, "checksum": migration.checksum},
                )
                applied.append(migration.name)
                break
        # New functions may need what the last migration made, and that may have dropped what they replace.
        if pending and set(pending) <= {*applied, REPEATABLE}:
            for text in files.repeatable:
                _apply(conn, text)
            conn.execute(read_sql("bookkeeping/record_repeatable.sql"), {"checksum": files.repeatable_checksum})
            applied.append(REPEATABLE)
        failpoints.hit("migration.before_commit")
        return applied


def _apply(conn: psycopg.Connection[Any], text: str) -> None:
    _execute(conn, text)
    # A file may act as another role and pin its own search path; the next one starts afresh.
    _execute(conn, "reset role; reset search_path")


def _execute(conn: psycopg.Connection[Any], text: str) -> None:
    conn.execute(text.encode())


def _fetch(conn: psycopg.Connection[Any], name: str) -> list[tuple[Any, ...]]:
    return conn.execute(read_sql(f"bookkeeping/{name}.sql").encode()).fetchall()


def _failed(error: psycopg.Error) -> MigrationError:
    return MigrationError(f"The migration failed and was rolled back ({_first_line(error)}).")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
