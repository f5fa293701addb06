"""A real PgBouncer in transaction mode before the session's server, for tests marked `system("pgbouncer")`."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pg_pipeline.embedded.account import let_pass, server_account
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline_tests.helpers import ChildProcess, wait_until

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


@pytest.fixture(scope="session")
def pooled(server: EmbeddedServer) -> Iterator[Callable[[str], str]]:
    """Turns a connection string into one that leads through the pooler."""
    program = shutil.which("pgbouncer", path=os.pathsep.join((os.environ["PATH"], "/usr/sbin")))
    assert program is not None, "a test that uses the pooler is marked system('pgbouncer')"
    folder = Path(tempfile.mkdtemp(prefix="pgp-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(CONFIGURATION.format(host=server.socket_dir, port=port))
    configuration.chmod(0o644)
    # It does not run as root, and reaches the private socket only as the server's own account.
    account = server_account()
    let_pass(account, configuration)
    as_account = ("setpriv", "--reuid", str(account.uid), "--regid", str(account.gid), "--clear-groups")
    process = ChildProcess(command=(*(as_account if os.geteuid() == 0 else ()), program, "-q", str(configuration)))

    def through(dsn: str) -> str:
        return f"host=127.0.0.1 port={port} user=postgres dbname={conninfo_to_dict(dsn)['dbname']}"

    def answers() -> bool:
        assert process.alive, process.stderr
        try:
            psycopg.connect(through(server.dsn("postgres"))).close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(answers, what="the pooler to answer")
    yield through
    process.close()
    shutil.rmtree(folder)
