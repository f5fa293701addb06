"""A proxy before Postgres that cuts the connection around a commit: the answer is lost, not the work."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

When = Literal["before", "during", "after"]
SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Speaks enough of the protocol to see where one message ends. `cut` arms it for one commit:

    - before: Postgres never hears of the commit;
    - during: it hears of it, and nobody waits for what it says;
    - after: it has committed and said so, and the client never hears it.

    A commit is the client's COMMIT, or the end of a call outside a transaction, which Postgres commits by itself.
    """

    def __init__(self, dsn: str) -> None:
        settings = conninfo_to_dict(dsn)
        self._server = f"{settings['host']}/{SOCKET}"
        self._folder = Path(tempfile.mkdtemp(prefix="pgp-"))
        self.dsn = f"postgresql://postgres@/{settings['dbname']}?host={quote(str(self._folder), safe='')}"
        self._armed: When | None = None
        self._skip = 0
        self.cuts = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / SOCKET))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, when: When, *, skip: int = 0) -> None:
        """At the next commit, or the one after `skip` more."""
        self._skip, self._armed = skip, when

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(timeout=10)
        shutil.rmtree(self._folder)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._open += [client, server]
            pair = Pair(self, client, server)
            for work in (pair.forth, pair.back):
                self._threads.append(threading.Thread(target=work, daemon=True))
                self._threads[-1].start()

    def take(self) -> When | None:
        """The armed cut, once."""
        with self._lock:
            if self._armed is not None and self._skip > 0:
                self._skip -= 1
                return None
            armed, self._armed = self._armed, None
            self.cuts += armed is not None
            return armed


class Pair:
    """One client and its session."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._deaf = False  # the answers from here on are lost
        self._in_transaction = False

    def forth(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._server.sendall(self._read_untyped(self._client))  # the startup message
            while True:
                kind, body = self._read(self._client)
                when = self._proxy.take() if self._commits(kind, body) else None
                if when == "before":
                    break
                self._deaf = when == "after"
                self._server.sendall(kind + struct.pack("!i", len(body) + 4) + body)
                if when == "during":
                    break
        self._hang_up()

    def back(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, body = self._read(self._server)
                if kind == b"Z":
                    self._in_transaction = body != b"I"
                    if self._deaf:
                        break
                if not self._deaf:
                    self._client.sendall(kind + struct.pack("!i", len(body) + 4) + body)
        self._hang_up()

    def _commits(self, kind: bytes, body: bytes) -> bool:
        if kind == b"Q":
            return body.upper().startswith(b"COMMIT")
        return kind == b"S" and not self._in_transaction  # Sync: the end of a call with parameters

    def _hang_up(self) -> None:
        for one in (self._client, self._server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _read(self, source: socket.socket) -> tuple[bytes, bytes]:
        kind = self._exactly(source, 1)
        return kind, self._read_untyped(source)[4:]

    def _read_untyped(self, source: socket.socket) -> bytes:
        head = self._exactly(source, 4)
        return head + self._exactly(source, struct.unpack("!i", head)[0] - 4)

    @staticmethod
    def _exactly(source: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = source.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data
