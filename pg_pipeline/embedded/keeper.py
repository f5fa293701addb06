"""The keeper: a small process beside the embedded server.

It restarts a server that dies under its users, and stops it when the last user is gone, however that one went.
If the keeper itself is killed, the next user starts another; a user that leaves last without a keeper stops the
server itself. What remains: kill the keeper and then every user, and the server runs until the next use.
"""

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import PgPipelineError

_INTERVAL = 0.5
_RETRY = 5.0


def keep(server: EmbeddedServer, lock: int) -> None:
    idle_since: float | None = None
    not_before = 0.0
    process: psutil.Process | None = None
    while True:
        if not _still_at(lock, server.folder / "keeper.lock"):
            # The folder was removed under us; nobody can find this server again.
            if process is not None:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGQUIT)
            return
        process = server.postmaster() or process
        if server.held("users.lock"):
            idle_since = None
            if server.postmaster() is None and time.monotonic() >= not_before:
                not_before = time.monotonic() + _RETRY
                _restart(server)
        else:
            idle_since = idle_since if idle_since is not None else time.monotonic()
            if time.monotonic() - idle_since >= server.linger:
                with server.starting():
                    if not server.held("users.lock"):
                        server.stop()
                        return
        server.bound_log()
        time.sleep(_INTERVAL)


def _restart(server: EmbeddedServer) -> None:
    with server.starting():
        if server.postmaster() is None and server.held("users.lock"):
            # The reason is in the server's log; the next user is told.
            with contextlib.suppress(PgPipelineError):
                server.start()


def _still_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def main() -> None:
    folder, version, socket_dir, linger = sys.argv[1:]
    server = EmbeddedServer(Path(folder), version=int(version), socket_dir=Path(socket_dir), linger=float(linger))
    lock = os.open(server.folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    # The lock is held before our starter goes on, and stays with the child: nobody has to wait for us or reap us.
    if os.fork():
        os._exit(0)
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    keep(server, lock)


if __name__ == "__main__":
    main()
