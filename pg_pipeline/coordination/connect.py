"""Connections to Postgres, with errors that a person can act on."""

import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pg_pipeline.errors import ConfigurationError, DatabaseUnreachable

MINIMUM_VERSION = 16

_QUOTED = re.compile('"[^"]*"')  # what libpq quotes back may be a password


def connect(dsn: str, *, timeout: int = 10, **options: Any) -> psycopg.Connection[Any]:
    """Connect, and refuse a server that is too old before anything is asked of it."""
    try:
        settings = {"connect_timeout": timeout, "application_name": "pg_pipeline", **conninfo_to_dict(dsn)}
        conn = psycopg.connect(make_conninfo("", **settings), **options)
    except psycopg.ProgrammingError as error:
        reason = _QUOTED.sub("…", _one_line(error))
        raise ConfigurationError(
            f"The connection string is not valid ({reason}): "
            "set PG_PIPELINE_DSN to something like postgresql://user:password@host:5432/database."
        ) from None
    except psycopg.OperationalError as error:
        if "certificate" in str(error):
            raise DatabaseUnreachable(
                f"Postgres at {_where(dsn)} does not prove who it is ({_one_line(error)}): name the certificate of its "
                "authority with sslrootcert in PG_PIPELINE_DSN, and the host as its certificate does."
            ) from None
        raise DatabaseUnreachable(
            f"Postgres cannot be reached at {_where(dsn)} ({_one_line(error)}): check PG_PIPELINE_DSN and the server."
        ) from None
    major = conn.info.server_version // 10000
    if major < MINIMUM_VERSION:
        conn.close()
        raise ConfigurationError(
            f"Postgres at {_where(dsn)} is version {major}, and pg_pipeline needs {MINIMUM_VERSION} or newer: "
            "upgrade it, or unset PG_PIPELINE_DSN to use the embedded one."
        )
    return conn


def _where(dsn: str) -> str:
    """Host, port and database, never the password."""
    settings = conninfo_to_dict(dsn)
    host = settings.get("host") or settings.get("hostaddr") or "the local socket"
    return f"{host}:{settings.get('port') or 5432}/{settings.get('dbname') or settings.get('user') or ''}"


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
