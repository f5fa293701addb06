"""`pg-pipeline serve` and `health`: asked over HTTP and by the program, in good times and in bad ones."""

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
import requests

from pg_pipeline.cli import shapes
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.cli.test_metrics import read
from pg_pipeline_tests.coordination.conftest import HandWorker, files
from pg_pipeline_tests.helpers import ChildProcess, wait_until

WORKER = """
import sys, threading
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
with Database(sys.argv[1]) as db, Worker(db):
    print("beats", flush=True)
    threading.Event().wait()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def serving(child: Callable[..., ChildProcess], dsn: str) -> str:
    port = free_port()
    command = (sys.executable, "-m", "pg_pipeline", "serve", "--port", str(port))
    child(command=command, env={"PG_PIPELINE_DSN": dsn}).wait_for_output("Listening on")
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def away(dsn: str) -> Iterator[Callable[[], None]]:
    """Takes the database away until the test ends."""
    name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn.replace(name, "postgres"), autocommit=True) as admin:
        gone: list[bool] = []

        def back() -> None:
            if gone:
                admin.execute(f'alter database "{name}_away" rename to "{name}"'.encode())
                gone.clear()

        def leave() -> None:
            admin.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'".encode())
            admin.execute(f'alter database "{name}" rename to "{name}_away"'.encode())
            gone.append(True)

        leave.back = back  # type: ignore[attr-defined]
        yield leave
        back()


def test_pages_are_served_and_outlive_the_database(serving: str, db: Database, hand: HandWorker, away: Any) -> None:
    execution = submission.submit(db, "orders", files(2), request_key="k").execution
    hand.finish(*hand.claim(1))
    page = requests.get(f"{serving}/report/{execution}", timeout=30)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert execution in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for key in ("<script>", "a%00b", "%ff%fe", "", f"{execution}/", "x" * 5000):
        missing = requests.get(f"{serving}/report/{key}", timeout=30)
        assert (missing.status_code, missing.headers["content-type"]) == (404, "text/plain; charset=utf-8"), key
    assert requests.get(f"{serving}/etc/passwd", timeout=30).status_code == 404
    assert requests.post(f"{serving}/health", timeout=30).status_code == 405
    well = requests.get(f"{serving}/health", timeout=30)
    assert well.status_code == 200
    assert [tuple(one) for one in well.json()] == [tuple(shapes.FINDING)] * 2

    def up() -> float:
        return read(requests.get(f"{serving}/metrics", timeout=30).text)["up",]

    assert up() == 1
    db.close()
    away()
    assert up() == 0
    unwell = requests.get(f"{serving}/health", timeout=30)
    assert unwell.status_code == 503
    assert unwell.json()[0]["fix"] == "see that it runs, then pg-pipeline doctor"
    assert requests.get(f"{serving}/report/{execution}", timeout=30).status_code == 503
    away.back()
    wait_until(lambda: up() == 1, what="the metrics to come back")


def test_a_port_that_is_taken_is_one_sentence(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = program("serve", "--port", str(taken.getsockname()[1]), code=1)
    assert "Nothing can listen on 127.0.0.1:" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_worker_is_unwell_only_when_it_is_silent_for_longer_than_its_lease(
    asked: Any, program: Program, child: Callable[..., ChildProcess], dsn: str, db: Database, hand: HandWorker
) -> None:
    """A real worker, stopped; its silence is written, so that nobody waits for it."""
    assert [one["name"] for one in asked("health")] == ["Postgres", "Workers"]
    worker = child(WORKER, dsn)
    worker.wait_for_output("beats")
    name = f"Worker {socket.gethostname()}:{worker.pid}"
    assert [(one["name"], one["fix"]) for one in asked("health")] == [("Postgres", ""), (name, "")]
    worker.signal(signal.SIGSTOP)

    def silent(seconds: int) -> None:
        db.rows("update pipeline.boot set seen_at = now() - interval '1 day' returning 1")
        db.rows(
            "update pipeline.worker set beat_at = now() - make_interval(secs => %s) where name = %s returning 1",
            (seconds, name.removeprefix("Worker ")),
        )

    # Past its lease of 30 s it may only be slow. The server of the tests may be younger than a minute.
    silent(45)
    assert asked("health")[1]["fix"] == ""
    silent(3600)
    db.rows("update pipeline.worker set lease = '1 s' returning 1")
    wait_until(lambda: db.value("select now() - pg_postmaster_start_time() > '3 s'"), what="the server to be older")
    found = asked("health", code=3)
    assert found[1]["name"] == name
    assert found[1]["fix"].startswith("restart it")
    assert "1 problem found." in program("health", code=3).stdout

    worker.signal(signal.SIGCONT)
    wait_until(lambda: asked("health")[1]["fix"] == "", what="the worker to beat again")
    worker.kill9()
    assert [one["name"] for one in asked("health")] == ["Postgres", "Workers"], "who is gone needs no restart"


def test_health_starts_nothing(program: Program, tmp_path: Any) -> None:
    shown = program("health", code=3, PG_PIPELINE_DSN="", PG_PIPELINE_STATE_DIR=str(tmp_path / "state"))
    assert "cannot be reached" in shown.stdout
    assert not list(tmp_path.glob("state/*/data"))


@pytest.fixture
def web() -> Iterator[Callable[[Any], str]]:
    """A web UI that says of its daemons what it is told to."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Any) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("age", "unwell"), [(250, False), (350, True), (None, True)])
def test_daemons_that_are_silent_for_too_long_are_a_problem(
    asked: Any, web: Callable[[Any], str], age: int | None, unwell: bool
) -> None:
    beat = None if age is None else time.time() - age
    statuses = [
        {"daemonType": "SENSOR", "required": True, "lastHeartbeatTime": beat},
        {"daemonType": "BACKFILL", "required": False, "lastHeartbeatTime": None},
    ]
    address = web({"data": {"instance": {"daemonHealth": {"allDaemonStatuses": statuses}}}})
    found = {one["name"]: one["fix"] for one in asked("health", "--up", address, code=3 if unwell else 0)}
    assert found == {"Postgres": "", "Workers": "", "Dagster": "", "Daemon SENSOR": found["Daemon SENSOR"]}
    assert bool(found["Daemon SENSOR"]) == unwell


def test_a_longer_lease_makes_it_more_patient(asked: Any, db: Database, web: Callable[[Any], str]) -> None:
    submission.configure_queue(db, "default", lease="10 min")
    statuses = [{"daemonType": "SENSOR", "required": True, "lastHeartbeatTime": time.time() - 900}]
    address = web({"data": {"instance": {"daemonHealth": {"allDaemonStatuses": statuses}}}})
    assert asked("health", "--up", address)[-1]["fix"] == ""


def test_a_web_ui_that_does_not_answer_is_a_problem(asked: Any) -> None:
    for address in (f"http://127.0.0.1:{free_port()}", "nonsense", "http://[", "http://" + "a" * 300):
        found = asked("health", "--up", address, code=3)
        assert found[-1]["name"] == "Dagster"
        assert "does not answer" in found[-1]["found"]
