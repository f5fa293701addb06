"""Dagster's own instance: its storage on the same Postgres server, in a database of its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from pg_pipeline.coordination.connect import connect
from pg_pipeline.embedded.postgres import database_dsn, ensure_running
from pg_pipeline.errors import ConfigurationError
from pg_pipeline.settings import Settings

DATABASE = "dagster"
VARIABLE = "DAGSTER_HOME"
PASSWORD = "DAGSTER_POSTGRES_PASSWORD"  # noqa: S105 - the variable's name


def dagster_home(settings: Settings) -> Path:
    """The user's DAGSTER_HOME as it is, or one of ours with a dagster.yaml for this Postgres, whose password the
    environment then holds."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser()
    dsn = ensure_running(settings)
    _ensure_database(dsn, settings)
    password = conninfo_to_dict(dsn).get("password")
    if password:
        os.environ[PASSWORD] = str(password)
    home = Path(os.path.abspath(settings.state_dir.expanduser())) / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    _write(home / "dagster.yaml", yaml.safe_dump(instance_config(database_dsn(dsn, DATABASE)), sort_keys=False))
    return home


def instance_config(dsn: str) -> dict[str, Any]:
    """The content of dagster.yaml."""
    return {
        "storage": {"postgres": {"postgres_db": _storage(dsn)}},
        # The default launcher has no health check: our reaper reports dead runs, and Dagster retries those,
        # not the runs that failed by themselves.
        "run_monitoring": {"enabled": True, "start_timeout_seconds": 180, "free_slots_after_run_end_seconds": 60},
        "run_retries": {"enabled": True, "max_retries": 3, "retry_on_asset_or_op_failure": False},
        # A run whose pool is full waits in the queue, not as a process that does nothing.
        "concurrency": {"pools": {"granularity": "run"}},
        "run_queue": {"dequeue_interval_seconds": 1},
        "sensors": {"use_threads": True, "num_workers": 4},
        "retention": {"sensor": {"purge_after_days": {"skipped": 1, "success": 30, "failure": 30}}},
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},  # a form for a newsletter, in front of the first page
    }


def _storage(dsn: str) -> dict[str, Any]:
    """As psycopg2 takes it: with SQLAlchemy 2.1 a plain postgresql:// selects psycopg 3, which Dagster's web
    server can't work with."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    host = parts.get("host", "")
    socket = not host or host.startswith("/")
    known = {"user", "password", "host", "port", "dbname", "hostaddr"}
    params: dict[str, Any] = {name: value for name, value in parts.items() if name not in known}
    if socket and host:
        params["host"] = host
    storage: dict[str, Any] = {
        "scheme": "postgresql+psycopg2",
        "username": parts.get("user", os.environ.get("USER", "postgres")),
        # By name: Dagster hands this configuration to its processes on their command lines.
        "password": {"env": PASSWORD} if parts.get("password") else "",
        "hostname": "" if socket else host,
        "port": int(parts.get("port", "5432")),
        "db_name": parts["dbname"],
    }
    return {**storage, "params": params} if params else storage


def _ensure_database(dsn: str, settings: Settings) -> None:
    with connect(dsn, timeout=settings.connect_timeout, autocommit=True) as conn:
        if conn.execute("select from pg_catalog.pg_database where datname = %s", (DATABASE,)).fetchone() is not None:
            return
        try:
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
        except (errors.DuplicateDatabase, errors.UniqueViolation):
            pass  # another process was quicker
        except errors.InsufficientPrivilege:
            raise ConfigurationError(
                f"Dagster keeps its runs in a database of its own, and this login may not create it: create the "
                f"database {DATABASE} on the same server, or set {VARIABLE} to an instance of your own."
            ) from None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and only when it changes."""
    if path.exists() and path.read_text() == text:
        return
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".dagster-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(fresh, 0o600)
    os.replace(fresh, path)
