"""What the attackers and the attacked share."""

import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pg_pipeline_tests.coordination.conftest import db, submit, worker

__all__ = ["db", "submit", "worker"]

# A certificate for 127.0.0.1 that nobody has reason to trust, and its key.
PEM = Path(__file__).with_name("loopback.pem")


class Receiver:
    """Somebody's web server on loopback; `path` and body of what it got, and what it answers."""

    def __init__(self, *, tls: bool) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                status, headers, text = receiver.answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(PEM)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/hook"
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Any]:
    one = Receiver(tls=False)
    yield one
    one.close()


@pytest.fixture
def secure_receiver() -> Iterator[Any]:
    one = Receiver(tls=True)
    yield one
    one.close()
