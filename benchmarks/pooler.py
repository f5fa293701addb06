"""A real PgBouncer in transaction mode before a benchmark's server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pg_pipeline.embedded.account import let_pass, server_account
from pg_pipeline.embedded.processes import poll
from pg_pipeline.embedded.server import EmbeddedServer

CONFIGURATION = """
[databases]
* = host={host} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
logfile =
pidfile =
"""


@contextmanager
def pooled(server: EmbeddedServer, dsn: str) -> Iterator[str | None]:
    """The same database through the pooler; None where there is no PgBouncer."""
    program = shutil.which("pgbouncer", path=os.pathsep.join((os.environ["PATH"], "/usr/sbin")))
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="pgp-bench-") as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        configuration = Path(folder) / "pgbouncer.ini"
        configuration.write_text(CONFIGURATION.format(host=server.socket_dir, port=port))
        configuration.chmod(0o644)
        account = server_account()
        let_pass(account, configuration)
        other = {"user": account.uid, "group": account.gid, "extra_groups": []} if os.geteuid() == 0 else {}
        through = f"host=127.0.0.1 port={port} user=postgres dbname={conninfo_to_dict(dsn)['dbname']}"

        def answers() -> bool:
            try:
                psycopg.connect(through).close()
            except psycopg.OperationalError:
                return False
            return True

        command = [program, "-q", str(configuration)]
        with subprocess.Popen(command, **other) as process:  # type: ignore[call-overload]
            try:
                assert poll(answers, 10), "the pooler does not answer"
                yield through
            finally:
                process.terminate()
