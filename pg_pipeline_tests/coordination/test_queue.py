"""Queue settings, the circuit breaker, the outbox and the reaper (P5, P10; lessons A4, A6, D6)."""

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from pg_pipeline.coordination import executions, reaper, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.outbox import Delivered, Dispatcher
from pg_pipeline.coordination.submission import send
from pg_pipeline.coordination.types import AttemptRef
from pg_pipeline.errors import InvalidInput, NotFound
from pg_pipeline_tests.coordination.conftest import HandWorker, files, state

Hand = Callable[..., HandWorker]


def test_the_breaker_pauses_a_queue_after_a_run_of_failures_of_one_cause(db: Database, hand: Hand, submit: Any) -> None:
    submission.configure_queue(db, "default", breaker_after=3, max_attempts=100)
    execution = submit(2)
    one = hand()
    for _ in range(3):
        one.fail(*one.claim())
    assert one.claim() == []
    (queue,) = executions.queues(db)
    assert (queue["paused_by"], "Boom" in queue["pause_reason"]) == ("breaker", True)
    assert any("circuit breaker" in r.detail for r in executions.explain(db, execution))
    executions.resume(db, "default")
    one.fail(*one.claim())
    assert len(one.claim()) == 1  # failures from before the resume don't count again


def test_a_success_or_another_cause_between_keeps_the_breaker_closed(db: Database, hand: Hand, submit: Any) -> None:
    submission.configure_queue(db, "default", breaker_after=3, max_attempts=100)
    submit(20)
    one = hand()
    for _ in range(4):
        one.fail(*one.claim())
        one.fail(*one.claim())
        one.finish(*one.claim())
    assert len(one.claim()) == 1


@pytest.mark.parametrize(
    "bad", [{"nonsense": 1}, {"lease": "soon"}, {"lease": "0 s"}, {"max_attempts": 0}, {"max_payload_bytes": -1}]
)
def test_a_bad_queue_setting_is_refused_and_nothing_changes(db: Database, bad: dict[str, Any]) -> None:
    before = db.rows("select * from pipeline.queue")
    with pytest.raises(InvalidInput):
        submission.configure_queue(db, "default", **bad)
    assert db.rows("select * from pipeline.queue") == before


def test_hostile_names_of_queues_and_pipelines_are_refused(db: Database) -> None:
    for name in ("", "a b", "x'; drop table pipeline.task; --", "é", "a" * 101):
        with pytest.raises(InvalidInput):
            submission.configure_queue(db, name)
        with pytest.raises(InvalidInput):
            submission.register_pipeline(db, name)
    with pytest.raises(NotFound):
        executions.pause(db, "nowhere", "x")


@pytest.fixture
def receiver() -> Iterator[Any]:
    """A webhook's receiver: the outside world. Answers with the codes it is given, then 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.got.append((dict(self.headers), body))
            self.send_response(server.answers.pop(0) if server.answers else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server: Any = HTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.answers = [], []
    server.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def finish_with_webhook(db: Database, hand: Hand, url: str) -> str:
    submission.register_pipeline(db, "orders", notify=[url])
    execution = submission.submit(db, "orders", files(1), request_key="k").execution
    one = hand()
    one.finish(*one.claim())
    one.finish(*one.claim(), result={"summary": {"rows": 1}})
    return execution


def test_p5_a_webhook_is_delivered_signed_with_its_key(db: Database, hand: Hand, receiver: Any) -> None:
    execution = finish_with_webhook(db, hand, receiver.url)
    dispatcher = Dispatcher(db, secret="s3cret", allow_private=True)
    assert dispatcher.dispatch() == Delivered(delivered=1)
    assert dispatcher.dispatch() == Delivered()
    ((headers, body),) = receiver.got
    key = headers["Idempotency-Key"]
    assert key == f"{execution}:g1:finished:1"
    assert json.loads(body)["summary"] == {"rows": 1}
    signed = f"{key}.{headers['X-Pg-Pipeline-Timestamp']}.".encode() + body
    expected = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
    assert headers["X-Pg-Pipeline-Signature"] == f"sha256={expected}"


def test_a_failed_delivery_comes_back_with_the_same_key_and_dies_after_the_last_try(
    db: Database, hand: Hand, receiver: Any
) -> None:
    execution = finish_with_webhook(db, hand, receiver.url)
    receiver.answers += [500, 302, 503]
    dispatcher = Dispatcher(db, max_attempts=3, allow_private=True)
    for expected in (Delivered(failed=1), Delivered(failed=1), Delivered(dead=1), Delivered()):
        assert dispatcher.dispatch() == expected
        db.rows("update pipeline.outbox set next_at = now() returning 1")
    assert len({headers["Idempotency-Key"] for headers, _ in receiver.got}) == 1
    (reason,) = [r for r in executions.explain(db, execution) if r.what == "outbox"]
    assert "503" in reason.detail
    dead = db.value("select id from pipeline.outbox where state = 'dead'")
    db.rows("select pipeline.replay_outbox(%s)", (dead,))
    assert dispatcher.dispatch() == Delivered(delivered=1)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "http://[::1]/x", "http://169.254.1.1/x", "ftp://x", "nonsense"]
)
def test_addresses_inside_the_network_are_refused_unless_allowed(db: Database, hand: Hand, url: str) -> None:
    finish_with_webhook(db, hand, url)
    assert Dispatcher(db).dispatch() == Delivered(failed=1)
    assert "address" in db.value("select error from pipeline.outbox where destination <> ''")


def test_a_dispatcher_that_was_too_slow_changes_nothing(db: Database, hand: Hand, receiver: Any) -> None:
    finish_with_webhook(db, hand, receiver.url)
    (slow,) = db.rows("select * from pipeline.claim_outbox(1, '0 s')")
    (quick,) = db.rows("select * from pipeline.claim_outbox(1, '1 min')")
    assert db.value("select pipeline.settle_outbox(%s, %s)", (slow["id"], slow["token"])) is None
    assert db.value("select pipeline.settle_outbox(%s, %s)", (quick["id"], quick["token"])) == "delivered"


def age(db: Database, *tables: str) -> None:
    columns = {
        "receipt": ["created_at"],
        "attempt": ["claimed_at", "ended_at"],
        "dead_letter": ["died_at", "resolved_at"],
        "worker": ["beat_at", "started_at", "stopped_at"],
        "outbox": ["delivered_at"],
        "action": ["at"],
    }
    for table in tables:
        for column in columns[table]:
            db.rows(f"update pipeline.{table} set {column} = {column} - interval '1 year' returning 1")


def test_the_reaper_prunes_old_history_and_keeps_what_is_live(db: Database, hand: Hand, submit: Any) -> None:
    live = submit(4, key="live")
    one = hand()
    one.finish(*one.claim(1))
    send(db, "default", [{"key": "waits", "kind": "nobody"}, {"key": "done", "kind": "thing"}])
    two = hand(kinds=["thing"])
    two.finish(*two.claim())
    db.rows("select pipeline.stop_worker(%s)", (two.id,))
    age(db, "receipt", "attempt", "worker")
    reaped = reaper.reap(db).counts
    assert (reaped["receipts"], reaped["attempts"], reaped["workers"]) == (1, 1, 2)
    assert [r["key"] for r in db.rows("select key from pipeline.receipt")] == ["waits"]
    assert len(executions.attempts(db, live)) == 1
    assert reaper.reap(db).total == 0


def test_lesson_d6_outputs_of_ended_attempts_are_discarded_and_only_those(
    db: Database, hand: Hand, submit: Any
) -> None:
    submit(8)
    one = hand()
    failed, committed, living, lost = one.claim(4)
    for lease in (failed, committed, living, lost):
        db.rows(
            "select pipeline.note_output(%s, %s, 'sink', %s::jsonb)",
            (lease["task_id"], lease["token"], json.dumps({"batch": lease["batch"]})),
        )
    one.fail(failed)
    one.finish(committed)
    discarded: list[int] = []

    def discard(sink: str, attempt: AttemptRef, location: Any) -> None:
        discarded.append(location["batch"])

    reaper.reap(db, discard, pipelines=["others"])  # their code does not know this sink
    assert discarded == []
    reaper.reap(db, discard, pipelines=["orders"])
    assert discarded == [failed["batch"]]
    reaper.reap(db, discard)
    assert discarded == [failed["batch"]]
    # Expiry alone is no reason; the transaction that takes the task from its worker is.
    db.rows(
        "update pipeline.task set run_deadline = now() - interval '1 s' where id = %s returning 1", (lost["task_id"],)
    )
    assert [r["batch"] for r in db.rows("select batch from pipeline.orphaned_outputs()")] == []
    reaper.reap(db, discard)
    assert discarded == [failed["batch"], lost["batch"]]
    assert [r["token"] for r in db.rows("select token from pipeline.attempt_output")] == [living["token"]]


def test_one_reaper_leads_at_a_time(db: Database, dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn) as leader:
        leader.execute("select pipeline.reap()")
        assert reaper.reap(db).counts == {}
    assert reaper.reap(db).counts != {}


def test_the_reaper_ends_what_is_past_its_deadline(db: Database, submit: Any) -> None:
    execution = submit(2)
    db.rows("update pipeline.execution set deadline = now() - interval '1 s' returning 1")
    reaper.reap(db)
    assert state(db, execution)["status"] == "expired"
