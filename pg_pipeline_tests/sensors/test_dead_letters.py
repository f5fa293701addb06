"""Dead letters and quarantine are shown on their partitions, and whoever asked is told; the outbox is delivered."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.testing import PipelineBench

Make = Callable[..., FilePipeline]


def submit(bench: PipelineBench, files: int) -> str:
    versions = [FileVersion(f"/in/{n}.json", "1", 10) for n in range(files)]
    return submission.submit(bench.db, "orders", versions, request_key="k").execution


def grow_old(conn: psycopg.Connection[Any]) -> None:
    """News are some seconds old when they are told."""
    conn.execute("update pipeline.dead_letter set died_at = died_at - interval '1 minute'")
    conn.execute("update pipeline.batch set committed_at = committed_at - interval '1 minute'")


def test_a_dead_letter_and_a_quarantined_file_are_observed_once_and_told(
    bench: PipelineBench, make_orders: Make, conn: psycopg.Connection[Any]
) -> None:
    make_orders(batch_files=1)
    execution = submit(bench, 2)
    with Worker(bench.db) as worker:
        first, second = worker.claim(2)
        worker.fail(first, "the disk is full", retryable=False)
        worker.finish(second, {"rows_in": 0, "quarantined": [{"ordinal": 0, "reason": "corrupt"}]})
    assert not bench.tick("bench_dead_letters").asset_events
    grow_old(conn)

    told: list[Any] = []
    answer = bench.tick("bench_dead_letters", alert=told.append)
    seen = {event.partition: event.metadata for event in answer.asset_events}
    assert seen[f"{execution}~00000"]["error"].value == "the disk is full"
    assert seen[f"{execution}~00001"]["quarantined"].value == 1
    assert [news["what"] for news in told] == ["dead letter", "quarantine"]
    repeated = bench.tick("bench_dead_letters")  # by a daemon that was killed before it kept the cursor
    assert [(e.partition, e.metadata) for e in repeated.asset_events] == list(seen.items())
    assert repeated.cursor == answer.cursor
    again = bench.tick("bench_dead_letters", cursor=answer.cursor, alert=told.append)
    assert not again.asset_events
    assert len(told) == 2


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook receiver on this machine."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append({"key": self.headers["Idempotency-Key"], **body})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_outbox_sensor_delivers_what_a_commit_recorded(
    bench: PipelineBench, make_orders: Make, receiver: tuple[str, list[dict[str, Any]]]
) -> None:
    address, got = receiver
    make_orders(batch_files=1, notify=[address])
    execution = submit(bench, 1)
    with Worker(bench.db) as worker:
        worker.finish(worker.claim(1)[0], {"rows_in": 1})
        worker.finish(worker.claim(1)[0], {"summary": {"rows": 1}})
    bench.tick("bench_outbox")
    bench.tick("bench_outbox")
    assert [(one["event"], one["execution"]) for one in got] == [("finished", execution)]
    assert got[0]["key"] == f"{execution}:g1:finished:1"
