"""The barrier, its policies, and the ends of an execution (P1, P2, P4, P5; lessons C1, C7, D2, D3, D5, D7, D8)."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from pg_pipeline.coordination import dead_letters, executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import NotFound, WrongState
from pg_pipeline_tests.coordination.conftest import HandWorker, files, state

Hand = Callable[..., HandWorker]


@pytest.fixture
def start(db: Database) -> Callable[..., str]:
    """An execution of three batches under a policy."""

    def make(policy: str = "strict", **options: Any) -> str:
        submission.register_pipeline(db, "orders", batch_files=2, policy=policy, **options)
        return submission.submit(db, "orders", files(6), request_key="k", tenant="acme", priority=7).execution

    return make


def drain(one: HandWorker) -> list[str]:
    kinds = []
    while leases := one.claim(10):
        kinds += [lease["kind"] for lease in leases]
        one.finish(*leases, result={"summary": {"n": len(kinds)}})
    return kinds


def test_strict_a_dead_letter_holds_the_barrier_until_it_is_replayed(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    one = hand()
    failed, *rest = one.claim(3)
    letter = one.fail(failed, retryable=False)["dead_letter"]
    one.finish(*rest)
    assert one.claim(10) == []
    before = state(db, execution)
    assert (before["status"], before["remaining"]) == ("blocked", 1)
    assert any(f"dlq replay {letter}" in (r.next_step or "") for r in executions.explain(db, execution))
    dead_letters.replay(db, letter)
    assert state(db, execution)["remaining"] == 1
    assert drain(one) == ["batch", "callback"]
    assert state(db, execution)["status"] == "finished"


def test_strict_goes_on_after_a_discard(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    one = hand()
    failed, *rest = one.claim(3)
    letter = one.fail(failed, retryable=False)["dead_letter"]
    one.finish(*rest)
    dead_letters.discard(db, letter, "the sender says ignore it")
    assert drain(one) == ["callback"]
    assert state(db, execution)["status"] == "finished"
    places = db.rows("select place, count(*)::int as n from pipeline.file_status group by 1")
    assert {p["place"]: p["n"] for p in places} == {"committed": 4, "discarded": 2}


def test_partial_the_callback_runs_when_every_batch_has_settled(db: Database, hand: Hand, start: Any) -> None:
    execution = start("partial")
    one = hand()
    failed, *rest = one.claim(3)
    one.fail(failed, retryable=False)
    assert state(db, execution)["status"] == "sealed"
    one.finish(*rest)
    assert drain(one) == ["callback"]
    assert (state(db, execution)["status"], state(db, execution)["dead_letters"]) == ("finished", 1)


def test_partial_a_replay_counts_one_more_while_there_is_no_callback_yet(db: Database, hand: Hand, start: Any) -> None:
    execution = start("partial")
    one = hand()
    failed, *rest = one.claim(3)
    letter = one.fail(failed, retryable=False)["dead_letter"]
    assert state(db, execution)["remaining"] == 2
    dead_letters.replay(db, letter)
    assert state(db, execution)["remaining"] == 3
    one.finish(*rest)
    assert drain(one) == ["batch", "callback"]


def test_partial_a_replay_after_the_callback_was_made_is_refused_and_points_to_rerun(
    db: Database, hand: Hand, start: Any
) -> None:
    start("partial")
    one = hand()
    failed, *rest = one.claim(3)
    letter = one.fail(failed, retryable=False)["dead_letter"]
    one.finish(*rest)
    with pytest.raises(WrongState, match="re-run"):
        dead_letters.replay(db, letter)
    drain(one)
    with pytest.raises(WrongState, match="re-run"):
        dead_letters.replay(db, letter)


def test_abort_the_first_dead_letter_ends_the_execution_and_tells(db: Database, hand: Hand, start: Any) -> None:
    execution = start("abort")
    one = hand()
    done, failed, held = one.claim(3)
    one.finish(done)
    one.fail(failed, retryable=False)
    after = state(db, execution)
    assert after["status"] == "aborted"
    assert [r["event"] for r in db.rows("select event from pipeline.outbox")] == ["aborted"]
    with pytest.raises(Exception, match="lease lost"):
        one.finish(held)
    assert one.release(held) == {"outcome": "released"}
    assert one.claim(10) == []
    assert db.value("select count(*) from pipeline.task") == 0
    places = db.rows("select place, count(*)::int as n from pipeline.file_status group by 1")
    assert {p["place"]: p["n"] for p in places} == {"committed": 2, "released": 4}


def test_d8_the_callback_carries_the_tenant_and_the_priority(db: Database, hand: Hand, start: Any) -> None:
    start()
    one = hand()
    one.finish(*one.claim(3))
    (callback,) = one.claim(10)
    assert (callback["kind"], callback["tenant"], callback["priority"]) == ("callback", "acme", 7)


def test_c7_cancel_and_deadline_tell_the_world_once(db: Database, hand: Hand, start: Any) -> None:
    execution = start(notify=["https://example.com/hook"])
    request = uuid4()
    first = executions.cancel(db, execution, "enough", request_id=request)
    assert executions.cancel(db, execution, "enough", request_id=request) == first
    with pytest.raises(WrongState, match="cancelled already"):
        executions.cancel(db, execution, "again")
    told = db.rows("select key, destination from pipeline.outbox order by id")
    assert [(t["key"], t["destination"]) for t in told] == [
        (f"{execution}:g1:cancelled", ""),
        (f"{execution}:g1:cancelled:1", "https://example.com/hook"),
    ]
    other = submission.submit(db, "orders", files(2, "other"), request_key="other").execution
    db.rows("update pipeline.execution set deadline = now() - interval '1 s' where key = %s returning 1", (other,))
    assert db.value("select pipeline.expire_executions()") == 1
    assert state(db, other)["status"] == "expired"
    assert hand().claim(10) == []


def test_rerun_of_named_batches_is_a_new_generation_with_one_more_callback(
    db: Database, hand: Hand, start: Any
) -> None:
    execution = start()
    one = hand()
    drain(one)
    assert executions.rerun(db, execution, [1]) == {"execution": execution, "generation": 2, "batches": 1}
    assert (state(db, execution)["status"], state(db, execution)["remaining"]) == ("sealed", 1)
    (lease,) = one.claim(10)
    assert (lease["batch"], lease["generation"]) == (1, 2)
    one.finish(lease)
    assert drain(one) == ["callback"]
    keys = {r["key"] for r in db.rows("select key from pipeline.outbox")}
    assert keys == {f"{execution}:g1:finished", f"{execution}:g2:finished"}


def test_d2_old_markers_never_block_a_rerun_of_everything(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    one = hand()
    drain(one)
    for generation in (2, 3):
        assert executions.rerun(db, execution)["generation"] == generation
        assert sorted(drain(one)) == ["batch", "batch", "batch", "callback"]
    assert state(db, execution)["status"] == "finished"


def test_rerun_only_of_what_has_finished(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    with pytest.raises(WrongState, match="only a finished one"):
        executions.rerun(db, execution)
    drain(hand())
    with pytest.raises(NotFound, match="no batch 9"):
        executions.rerun(db, execution, [9])
    request = uuid4()
    assert executions.rerun(db, execution, request_id=request) == executions.rerun(db, execution, request_id=request)
    assert state(db, execution)["generation"] == 2


def test_p2_cancelling_a_rerun_keeps_the_earlier_rows_and_their_files(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    one = hand()
    drain(one)
    tokens = db.rows("select number, token from pipeline.batch order by number")
    executions.rerun(db, execution)
    one.claim(1)
    executions.cancel(db, execution, "the old rows were right")
    assert db.rows("select number, token from pipeline.batch order by number") == tokens
    assert submission.submit(db, "orders", files(6), request_key="again", released=True).taken == 0
    assert executions.rerun(db, execution)["generation"] == 3


def test_a_rerun_finds_good_what_was_quarantined(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    one = hand()
    bad = {"quarantined": [{"ordinal": 0, "reason": "empty"}]}
    one.finish(*one.claim(3), result=bad)
    drain(one)
    assert state(db, execution)["quarantined"] == 3
    executions.rerun(db, execution, [0])
    drain(one)
    assert state(db, execution)["quarantined"] == 2
    assert {f["batch"] for f in executions.quarantined(db, execution)} == {1, 2}


def test_d7_negative_counts_are_refused_by_the_tables(db: Database, start: Any) -> None:
    start()
    for statement in (
        "update pipeline.execution set settled = expected + 1 returning 1",
        "update pipeline.execution set settled = -1 returning 1",
        "update pipeline.batch set number = -1 returning 1",
        "insert into pipeline.task (lane_id, batch, max_attempts, ready_at) values (1, -1, 1, now()) returning 1",
    ):
        with pytest.raises(Exception, match=r"refuses|violates"):
            db.rows(statement)


def test_c1_a_poisoned_callback_shows_whose_it_is(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    one = hand()
    one.finish(*one.claim(3))
    one.fail(*one.claim(), retryable=False, error="summarise broke")
    assert state(db, execution)["status"] == "blocked"
    (letter,) = dead_letters.listed(db, execution=execution)
    assert (letter["kind"], letter["tenant"], letter["error"]) == ("callback", "acme", "summarise broke")


def test_partial_a_rerun_of_other_batches_leaves_a_letter_where_it_is(db: Database, hand: Hand, start: Any) -> None:
    execution = start("partial")
    one = hand()
    failed, *rest = one.claim(3)
    letter = one.fail(failed, retryable=False)["dead_letter"]
    one.finish(*rest)
    drain(one)
    executions.rerun(db, execution, [rest[0]["batch"]])
    assert [row["id"] for row in dead_letters.listed(db)] == [letter]
    drain(one)
    dead_letters.discard(db, letter, "enough")
    places = db.rows("select place, count(*)::int as n from pipeline.file_status group by 1")
    assert {p["place"]: p["n"] for p in places} == {"committed": 4, "discarded": 2}


def test_what_was_cancelled_with_every_batch_committed_can_be_rerun(db: Database, hand: Hand, start: Any) -> None:
    execution = start()
    one = hand()
    one.finish(*one.claim(3))
    executions.cancel(db, execution, "the callback was wrong")
    assert executions.rerun(db, execution, [0])["generation"] == 2
    assert drain(one) == ["batch", "callback"]
