"""A database for a benchmark: durable settings, a server of its own, gone with it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.embedded.server import EmbeddedServer


@contextmanager
def database() -> Iterator[str]:
    """The address of a migrated database."""
    with tempfile.TemporaryDirectory(prefix="pgp-bench-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedServer(Path(folder) / "postgres", linger=0)
        server.attach()
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
            admin.execute("create database bench")
        migrate(server.dsn("bench"))
        yield server.dsn("bench")
        server.detach()
