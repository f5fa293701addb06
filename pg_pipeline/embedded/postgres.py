"""The one call that gives a Postgres: the user's own where there is one, the embedded one otherwise."""

import atexit
import os
import threading
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.settings import Settings, get_settings

_servers: dict[Path, EmbeddedServer] = {}
_guard = threading.Lock()


def ensure_running(settings: Settings | None = None) -> str:
    """A connection string to a Postgres that runs; this process counts as its user until it exits."""
    settings = settings or get_settings()
    if settings.dsn:
        return settings.dsn
    server = embedded_server(settings)
    server.attach()
    return server.dsn()


def embedded_server(settings: Settings) -> EmbeddedServer:
    """The embedded server of these settings, one object per process; nothing is started."""
    folder = Path(os.path.abspath(settings.state_dir.expanduser())) / f"postgres{settings.postgres_version}"
    with _guard:
        if folder not in _servers:
            server = EmbeddedServer(
                folder,
                version=settings.postgres_version,
                socket_dir=settings.socket_dir,
                linger=settings.embedded_linger,
            )
            _servers[folder] = server
            atexit.register(_leave, server, os.getpid())
        return _servers[folder]


def database_dsn(dsn: str, database: str) -> str:
    """The same server, another database."""
    return make_conninfo("", **{**conninfo_to_dict(dsn), "dbname": database})


def _leave(server: EmbeddedServer, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child, which has its own share of the lock
        server.detach()
