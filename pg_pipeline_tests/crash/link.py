"""A host's way to Postgres: TCP on loopback, which can be cut in the middle of what is said and healed later."""

from __future__ import annotations

import contextlib
import socket
import threading

from psycopg.conninfo import conninfo_to_dict

from pg_pipeline_tests.crash.proxy import SOCKET


class Link:
    """Forwards bytes. Cut, it keeps every connection open and lets nothing through, as a network does that is gone:
    nobody is told. Healed, it delivers what was said before."""

    def __init__(self, dsn: str) -> None:
        settings = conninfo_to_dict(dsn)
        self._server = f"{settings['host']}/{SOCKET}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.dsn = f"postgresql://postgres@127.0.0.1:{port}/{settings['dbname']}?sslmode=disable"
        self._cut_before: bytes | None = None
        self._whole = threading.Event()
        self._whole.set()
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut_before(self, words: str) -> None:
        """Cut it when somebody says this, before it is heard."""
        self._cut_before = words.encode()

    @property
    def is_cut(self) -> bool:
        return not self._whole.is_set()

    def heal(self) -> None:
        self._cut_before = None
        self._whole.set()

    def close(self) -> None:
        self.heal()
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self.connections += 1
            self._open += [client, server]
            for source, target in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._forward, args=(source, target), daemon=True))
                self._threads[-1].start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._cut_before is not None and self._cut_before in data:
                    self._whole.clear()
                self._whole.wait()
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
