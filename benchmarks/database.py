"""Databases for a benchmark: durable settings, a server of its own, gone with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import psycopg
from psycopg import sql

from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.embedded.server import EmbeddedServer

DURABLE = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "wal_sync_method")


class Server:
    """One server; every way has a database of its own on it, so that none works on another's tables."""

    def __init__(self, embedded: EmbeddedServer) -> None:
        self.embedded = embedded

    def new(self, template: str = "template0") -> str:
        """The address of an empty database, or of a copy."""
        name = f"bench_{uuid4().hex[:10]}"
        with psycopg.connect(self.embedded.dsn("postgres"), autocommit=True) as admin:
            statement = sql.SQL("create database {} template {}")
            admin.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.embedded.dsn(name)

    def migrated(self) -> str:
        dsn = self.new()
        migrate(dsn)
        return dsn

    def copy(self, dsn: str) -> str:
        """Nobody may be connected to it."""
        return self.new(template=psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])  # type: ignore[arg-type]

    def settings(self) -> dict[str, Any]:
        """What makes a commit durable, read from the server itself."""
        with psycopg.connect(self.embedded.dsn("postgres")) as conn:
            found = conn.execute(
                "select name, current_setting(name) from pg_settings where name = any (%s)", [[*DURABLE]]
            )
            return dict(sorted(found.fetchall()))

    def cpu(self) -> float:
        """Seconds of CPU that its sessions took so far, of those that ended, too."""
        times = psutil.Process(self.pid).cpu_times()
        living = [session.cpu_times() for session in psutil.Process(self.pid).children()]
        return float(times.children_user + times.children_system + sum(t.user + t.system for t in living))

    @property
    def pid(self) -> int:
        process = self.embedded.postmaster()
        assert process is not None
        return int(process.pid)


@contextmanager
def server(embedded: EmbeddedServer | None = None) -> Iterator[Server]:
    """A server of its own, or one that runs already and stays."""
    if embedded is not None:
        yield Server(embedded)
        return
    with tempfile.TemporaryDirectory(prefix="pgp-bench-", ignore_cleanup_errors=True) as folder:
        embedded = EmbeddedServer(Path(folder) / "postgres", linger=0)
        embedded.attach()
        try:
            yield Server(embedded)
        finally:
            embedded.detach()


@contextmanager
def database() -> Iterator[str]:
    """The address of a migrated database."""
    with server() as made:
        yield made.migrated()
