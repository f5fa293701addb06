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


class Keeper:
    """`process` is the server as our starter left it: its folder may be gone before we look for the first time."""

    def __init__(self, server: EmbeddedServer, lock: int, process: psutil.Process | None) -> None:
        self.server = server
        self.lock = lock
        self.process = process
        self.idle_since: float | None = None
        self.not_before = 0.0

    def keep(self) -> None:
        while _still_at(self.lock, self.server.folder / "keeper.lock"):
            # The folder may go between any two looks at it, and its disk may be full: the next look tries again.
            with contextlib.suppress(OSError):
                if self._look() == "stopped":
                    return
            time.sleep(_INTERVAL)
        # The folder was removed under us; nobody can find this server again.
        if self.process is not None:
            with contextlib.suppress(psutil.Error):
                self.process.send_signal(signal.SIGQUIT)

    def _look(self) -> str:
        server, now = self.server, time.monotonic()
        self.process = server.postmaster() or self.process
        if server.held("users.lock"):
            self.idle_since = None
            if server.postmaster() is None and now >= self.not_before:
                self.not_before = now + _RETRY
                _restart(server)
                self.process = server.postmaster() or self.process
        else:
            self.idle_since = now if self.idle_since is None else self.idle_since
            if now - self.idle_since >= server.linger:
                with server.starting():
                    if not server.held("users.lock"):
                        server.stop()
                        return "stopped"
        server.bound_log()
        return "needed"


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
    process = server.postmaster()
    # The lock is held before our starter goes on, and stays with the child: nobody has to wait for us or reap us.
    if os.fork():
        os._exit(0)
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    Keeper(server, lock, process).keep()


if __name__ == "__main__":
    main()
