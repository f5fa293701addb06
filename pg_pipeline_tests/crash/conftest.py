"""A database whose workers are soon missed, a sink to count rows in, and processes to kill."""

import http.server
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.coordination.conftest import db, hand, submit, worker  # noqa: F401 - fixtures
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.helpers import ChildProcess


@pytest.fixture
def brisk(db: Database) -> Database:  # noqa: F811
    """Who is dead is missed after 150 ms, who is stopped after a second."""
    submission.configure_queue(db, "default", lease="1 s", grace="150 ms")
    with psycopg.connect(db.dsn, autocommit=True) as conn:
        conn.execute(actor.SINK)
    return db


@pytest.fixture
def act(brisk: Database, child: Callable[..., ChildProcess]) -> Callable[..., ChildProcess]:
    """Starts a process that does one thing, to be killed or stopped at a failpoint."""

    def start(
        verb: str, point: str | None = None, *, action: str = "kill", dsn: str = "", **given: Any
    ) -> ChildProcess:
        return child(
            None,
            verb,
            dsn or brisk.dsn,
            json.dumps(given),
            module="pg_pipeline_tests.crash.actor",
            env={"PG_PIPELINE_FAILPOINT": point, "PG_PIPELINE_FAILPOINT_ACTION": action},
        )

    return start


class Receiver:
    """A webhook's other end, which keeps count by idempotency key."""

    def __init__(self) -> None:
        self.keys: Counter[str] = Counter()
        self.bodies: dict[str, bytes] = {}
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.keys[self.headers["Idempotency-Key"]] += 1
                receiver.bodies.setdefault(self.headers["Idempotency-Key"], body)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()
