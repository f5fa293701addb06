"""`pg-pipeline serve`: metrics, health and report pages over HTTP; `up` has it too."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Annotated, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psycopg
import typer
from prometheus_client import make_wsgi_app

from pg_pipeline.cli.database import opened
from pg_pipeline.cli.findings import plain
from pg_pipeline.cli.health import findings
from pg_pipeline.cli.metrics import registry
from pg_pipeline.cli.output import say
from pg_pipeline.cli.report import gathered, render
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import ConfigurationError, InvalidInput, NotFound, PgPipelineError

Start = Callable[..., Any]
Application = Callable[[dict[str, Any], Start], Iterable[bytes]]


def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 9464,
    address: Annotated[str, typer.Option(help="On which address.")] = "127.0.0.1",
    up: Annotated[str | None, typer.Option(metavar="URL", help="The web UI that /health looks at, too.")] = None,
) -> None:
    """Serve /metrics for Prometheus, /health (200 or 503) and /report/EXECUTION, until Ctrl-C.

    Nobody is asked who they are: what listens on more than this machine belongs behind a proxy that does.
    """
    with opened() as db, bound(address, port, application(db, up)) as server:
        say(f"Listening on {address}:{port}: /metrics, /health and /report/EXECUTION, until Ctrl-C.")
        server.serve_forever()


@contextmanager
def bound(address: str, port: int, serves: Application) -> Iterator[WSGIServer]:
    """A server that listens and does not answer yet."""
    kind = _Server6 if ":" in address else _Server
    try:
        server = make_server(address, port, serves, server_class=kind, handler_class=_Silent)
    except OSError as error:
        raise ConfigurationError(
            f"Nothing can listen on {address}:{port} ({error.strerror}): choose another port."
        ) from None
    with server:
        yield server


@contextmanager
def answering(server: WSGIServer) -> Iterator[None]:
    """It answers, in a thread of its own."""
    thread = threading.Thread(target=server.serve_forever, name="pg_pipeline-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def application(db: Database, up: str | None = None) -> Application:
    metrics: Application = make_wsgi_app(registry(db))

    def answer(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] != "GET":
            return _say(start, "405 Method Not Allowed", "Only GET is known here.")
        if path == "/metrics":
            return metrics(environ, start)
        if path == "/health":
            found = findings(db, up)
            status = "503 Service Unavailable" if any(one.fix for one in found) else "200 OK"
            return _say(start, status, json.dumps(plain(found)), "application/json")
        if path.startswith("/report/"):
            return _report(db, path.removeprefix("/report/"), start)
        return _say(start, "404 Not Found", "There are /metrics, /health and /report/EXECUTION.")

    return answer


def _report(db: Database, execution: str, start: Start) -> Iterable[bytes]:
    try:
        page = render(gathered(db, execution))
    except (NotFound, InvalidInput, psycopg.DataError) as error:  # also a key that can't be one
        return _say(start, "404 Not Found", str(error))
    except (psycopg.Error, PgPipelineError) as error:
        return _say(start, "503 Service Unavailable", str(error))
    return _say(start, "200 OK", page, "text/html")


def _say(start: Start, status: str, text: str, kind: str = "text/plain") -> Iterable[bytes]:
    headers = {
        "Content-Type": f"{kind}; charset=utf-8",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    }
    start(status, list(headers.items()))
    return [text.encode("utf-8", "replace")]


class _Server(ThreadingMixIn, WSGIServer):
    """A slow reader keeps nobody waiting, and none keeps the process."""

    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    timeout = 60  # of a client that says nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
