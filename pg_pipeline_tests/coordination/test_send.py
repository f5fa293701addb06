"""Idempotent enqueue (P7; lessons B1 to B3)."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.rows import dict_row

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.submission import send
from pg_pipeline.errors import NotFound
from pg_pipeline_tests.coordination.conftest import HandWorker

Hand = Callable[..., HandWorker]
THING = {"key": "a", "kind": "thing", "payload": {"n": 1}}


def outcomes(db: Database, *entries: object) -> list[str]:
    return [sent.outcome for sent in send(db, "default", entries)]  # type: ignore[arg-type]


def tasks(db: Database) -> int:
    count: int = db.value("select count(*) from pipeline.task")
    return count


def test_each_entry_gets_an_outcome_in_order_and_none_fails_another(db: Database) -> None:
    sent = send(
        db,
        "default",
        [THING, {"key": "b"}, {**THING, "payload": {"n": 2}}, THING, {"key": "c", "kind": "thing"}, {"kind": "thing"}],
    )
    assert [s.outcome for s in sent] == ["created", "rejected", "conflict", "duplicate", "created", "rejected"]
    assert sent[3].task_id == sent[0].task_id
    assert "kind" in (sent[1].reason or "")
    assert tasks(db) == 2


@pytest.mark.parametrize(
    "bad",
    [
        3,
        None,
        [],
        "x",
        {"key": "", "kind": "t"},
        {"key": "k" * 501, "kind": "t"},
        {"key": "k", "kind": "no spaces"},
        {"key": "k", "kind": "t", "priority": 99999},
        {"key": "k", "kind": "t", "priority": "high"},
        {"key": "k", "kind": "t", "priority": 1.5},
        {"key": "k", "kind": "t", "batch": -1},
        {"key": "k", "kind": "t", "batch": "x"},
        {"key": "k", "kind": "t", "delay_seconds": -1},
        {"key": "k", "kind": "t", "tenant": "t" * 201},
        {"key": "k", "kind": "t", "payload": "x" * 70_000},
    ],
)
def test_a_bad_entry_is_rejected_with_a_reason_and_the_others_are_stored(db: Database, bad: object) -> None:
    sent = send(db, "default", [bad, THING])  # type: ignore[list-item]
    assert [s.outcome for s in sent] == ["rejected", "created"]
    assert sent[0].reason


@pytest.mark.parametrize("since", ["claimed", "finished", "dead-lettered", "failed"])
def test_lesson_b2_a_retry_never_recreates_what_was_consumed_since(db: Database, hand: Hand, since: str) -> None:
    (first,) = send(db, "default", [THING])
    one = hand()
    (lease,) = one.claim()
    if since == "finished":
        one.finish(lease)
    elif since == "dead-lettered":
        one.fail(lease, retryable=False)
    elif since == "failed":
        one.fail(lease)
    before = db.rows("select * from pipeline.task")
    (again,) = send(db, "default", [THING])
    assert (again.outcome, again.task_id) == ("duplicate", first.task_id)
    assert db.rows("select * from pipeline.task") == before


def test_lesson_b3_a_stored_entry_is_reported_as_stored_after_a_limit_was_tightened(db: Database) -> None:
    big = {"key": "big", "kind": "thing", "payload": "x" * 1000}
    assert outcomes(db, big) == ["created"]
    submission.configure_queue(db, "default", max_payload_bytes=100)
    assert outcomes(db, big, {**big, "key": "other"}) == ["duplicate", "rejected"]


def test_lesson_b1_a_retry_of_a_whole_call_sends_nothing_twice(db: Database) -> None:
    entries = [{"key": str(n), "kind": "thing", "payload": n} for n in range(100)]
    first = send(db, "default", entries)
    again = send(db, "default", entries)
    assert {s.outcome for s in first} == {"created"}
    assert {s.outcome for s in again} == {"duplicate"}
    assert [s.task_id for s in first] == [s.task_id for s in again]
    assert tasks(db) == 100


def test_send_is_part_of_the_callers_transaction(db: Database, dsn: str) -> None:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        assert send(conn, "default", [THING])[0].outcome == "created"
        conn.rollback()
        assert tasks(db) == 0
        assert send(conn, "default", [THING])[0].outcome == "created"
        conn.commit()
    assert tasks(db) == 1


def test_an_unknown_queue_is_named(db: Database) -> None:
    with pytest.raises(NotFound, match="queue nowhere not found"):
        send(db, "nowhere", [THING])
