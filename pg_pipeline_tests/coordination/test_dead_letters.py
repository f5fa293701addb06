"""Dead letters keep everything and come back once (P8; lessons E1 to E3)."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from pg_pipeline.coordination import dead_letters, executions
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.submission import send
from pg_pipeline.errors import InvalidInput, NotFound, SubmissionConflict
from pg_pipeline_tests.coordination.conftest import HandWorker, state

Hand = Callable[..., HandWorker]


@pytest.fixture
def letter(db: Database, hand: Hand, submit: Any) -> int:
    submit(2)
    one = hand()
    for _ in range(2):
        one.fail(*one.claim())
    number: int = one.fail(*one.claim(), error="x" * 50_000)["dead_letter"]
    return number


def test_lesson_e3_a_letter_keeps_the_whole_task_its_error_and_its_history(db: Database, hand: Hand) -> None:
    payload = {"n": 1, "deep": {"list": [1, None, "ü"]}}
    send(db, "default", [{"key": "k", "kind": "thing", "payload": payload, "tenant": "acme", "priority": 3}])
    one = hand()
    number = one.fail(*one.claim(), retryable=False, error="why it died")["dead_letter"]
    whole = dead_letters.show(db, number)
    assert whole["payload"] == payload
    assert (whole["key"], whole["tenant"], whole["priority"], whole["attempts"]) == ("k", "acme", 3, 1)
    assert whole["error"] == "why it died"
    assert [a["outcome"] for a in whole["history"]] == ["failed"]


def test_a_long_error_is_cut_to_a_bound(db: Database, letter: int) -> None:
    assert len(dead_letters.show(db, letter)["error"]) <= 20_000


def test_a_replay_extends_the_budget_and_forgets_no_attempt(db: Database, hand: Hand, letter: int) -> None:
    old = {row["token"] for row in db.rows("select token from pipeline.attempt")}
    dead_letters.replay(db, letter)
    (lease,) = hand().claim()
    assert lease["attempt"] == 4
    assert lease["token"] not in old
    assert len(dead_letters.show(db, letter)["history"]) == 3


def test_p8_the_second_replay_is_told_that_the_letter_is_not_there(db: Database, letter: int) -> None:
    dead_letters.replay(db, letter)
    with pytest.raises(NotFound, match=f"dead letter {letter} not found"):
        dead_letters.replay(db, letter)
    with pytest.raises(NotFound):
        dead_letters.discard(db, letter, "too late")
    assert db.value("select count(*) from pipeline.task") == 1


def test_a_lost_answer_to_a_replay_can_be_asked_for_again(db: Database, letter: int) -> None:
    request = uuid4()
    assert dead_letters.replay(db, letter, request_id=request) == dead_letters.replay(db, letter, request_id=request)
    with pytest.raises(SubmissionConflict):
        dead_letters.discard(db, letter, "x", request_id=request)


def test_a_discard_needs_a_reason_and_keeps_it(db: Database, letter: int) -> None:
    with pytest.raises(InvalidInput, match="needs a reason"):
        dead_letters.discard(db, letter, " ")
    dead_letters.discard(db, letter, "the sender withdrew it", by="ann")
    whole = dead_letters.show(db, letter)
    assert (whole["resolution"], whole["resolved_by"], whole["resolved_why"]) == (
        "discarded",
        "ann",
        "the sender withdrew it",
    )


def test_replay_many_takes_what_matches_and_says_what_it_could_not(db: Database, hand: Hand, letter: int) -> None:
    send(db, "default", [{"key": str(n), "kind": "thing"} for n in range(3)])
    one = hand()
    for lease in one.claim(10):
        one.fail(lease, retryable=False)
    assert len(dead_letters.listed(db)) == 4
    assert len(dead_letters.replay_many(db, reason="error").replayed) == 3
    db.rows("update pipeline.execution set generation = 2 where true returning 1")
    answer = dead_letters.replay_many(db)
    assert (answer.replayed, [r["dead_letter"] for r in answer.refused]) == ([], [letter])
    db.rows("update pipeline.execution set generation = 1 where true returning 1")


def test_an_unknown_letter_is_named(db: Database) -> None:
    with pytest.raises(NotFound, match="dead letter 77 not found"):
        dead_letters.replay(db, 77)
    with pytest.raises(NotFound):
        dead_letters.show(db, 77)


def test_p7_a_request_id_with_another_content_is_a_conflict_and_changes_nothing(
    db: Database, submit: Any, hand: Hand
) -> None:
    """Also when only the batches or the reason differ: the first answer would pass for the second's."""
    one, done = hand(), submit(4, key="done")
    while leases := one.claim(10):
        one.finish(*leases)
    live = submit(4, key="live")
    letters = [one.fail(lease, retryable=False)["dead_letter"] for lease in one.claim(2)]
    rerun, discard, cancel = uuid4(), uuid4(), uuid4()
    first = executions.rerun(db, done, [1, 0, 1], request_id=rerun)
    assert executions.rerun(db, done, [0, 1], request_id=rerun) == first
    dead_letters.discard(db, letters[0], "empty files", request_id=discard)
    with pytest.raises(SubmissionConflict):
        dead_letters.discard(db, letters[0], "other reason", request_id=discard)
    executions.cancel(db, live, "enough", request_id=cancel)
    for again in (
        lambda: executions.rerun(db, done, [0], request_id=rerun),
        lambda: executions.rerun(db, done, request_id=rerun),
        lambda: dead_letters.discard(db, letters[1], "empty files", request_id=discard),
        lambda: executions.cancel(db, live, "changed our minds", request_id=cancel),
    ):
        with pytest.raises(SubmissionConflict):
            again()
    assert state(db, done)["generation"] == 2
    while leases := one.claim(10):
        one.finish(*leases)
