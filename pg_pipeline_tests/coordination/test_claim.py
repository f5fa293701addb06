"""Claim: order, fairness, take-over, suspects (P3, P9, P10; lessons A7, C3, D8)."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.submission import send
from pg_pipeline.errors import WorkerUnknown
from pg_pipeline_tests.coordination.conftest import HandWorker, state

Hand = Callable[..., HandWorker]


def enqueue(db: Database, count: int, **fields: Any) -> None:
    prefix = uuid4().hex
    send(db, "default", [{"key": f"{prefix}{n}", "kind": "thing", **fields} for n in range(count)])


def test_priority_comes_first_then_age(db: Database, hand: Hand) -> None:
    enqueue(db, 2, payload="old")
    enqueue(db, 1, payload="urgent", priority=5)
    enqueue(db, 1, payload="later", priority=-5)
    assert [lease["payload"] for lease in hand().claim(10)] == ["urgent", "old", "old", "later"]


def test_tenants_take_turns_whatever_their_backlog(db: Database, hand: Hand) -> None:
    enqueue(db, 50, tenant="big")
    enqueue(db, 3, tenant="small")
    enqueue(db, 3, tenant="tiny")
    assert Counter(lease["tenant"] for lease in hand().claim(9)) == {"big": 3, "small": 3, "tiny": 3}


def test_a_worker_that_claims_one_by_one_serves_tenants_in_turn(db: Database, worker: Any) -> None:
    enqueue(db, 3, tenant="a")
    enqueue(db, 3, tenant="b")
    enqueue(db, 3, tenant="c")
    one = worker()
    served = []
    for _ in range(9):
        (lease,) = one.claim()
        served.append(lease.tenant)
        one.finish(lease)
    assert served == list("abcabcabc")


def test_a_share_that_a_tenant_does_not_use_goes_to_the_others(db: Database, hand: Hand) -> None:
    enqueue(db, 1, tenant="a")
    enqueue(db, 20, tenant="b")
    assert len(hand().claim(10)) == 10


def test_a_worker_gets_only_the_pipelines_and_kinds_it_declares(db: Database, hand: Hand, submit: Any) -> None:
    submission.register_pipeline(db, "other")
    submit(2)
    enqueue(db, 1)
    assert hand(pipelines=["other"]).claim(10) == []
    assert hand(kinds=["callback"]).claim(10) == []
    assert [x["kind"] for x in hand(pipelines=["orders"], kinds=["batch"]).claim(10)] == ["batch"]
    assert [x["kind"] for x in hand(kinds=["thing"]).claim(10)] == ["thing"]


def test_work_that_no_worker_declares_waits_and_explain_says_so(db: Database, hand: Hand, submit: Any) -> None:
    execution = submit(2)
    hand(pipelines=["other"])
    (reason,) = [r for r in executions.explain(db, execution) if r.what == "ready"]
    assert "no running worker takes batch tasks of pipeline orders" in (reason.next_step or "")
    hand(pipelines=["orders"])
    (reason,) = [r for r in executions.explain(db, execution) if r.what == "ready"]
    assert "a worker takes it" in (reason.next_step or "")


def test_a_claim_asked_again_returns_the_same_leases(db: Database, hand: Hand, submit: Any) -> None:
    submit(8)
    one = hand()
    claim = uuid4()
    first = one.claim(2, claim_id=claim)
    assert one.claim(2, claim_id=claim) == first
    assert [x["batch"] for x in one.claim(10)] == [2, 3]


def test_p3_the_task_of_a_dead_worker_is_taken_over_with_a_new_token(db: Database, hand: Hand, submit: Any) -> None:
    execution = submit(2)
    dead, heir = hand(), hand()
    (lost,) = dead.claim()
    assert heir.claim() == []
    dead.die()
    (lease,) = heir.claim()
    assert lease["task_id"] == lost["task_id"]
    assert lease["token"] != lost["token"]
    assert (lease["attempt"], lease["alone"]) == (2, True)
    assert dead.finish(lost)[0]["outcome"] == "lost"
    assert heir.finish(lease)[0]["outcome"] == "committed"
    assert dead.finish(lost)[0]["outcome"] == "lost"
    assert [a["outcome"] for a in executions.attempts(db, execution)] == ["fenced", "committed"]


def test_a_hung_batch_is_taken_back_at_its_run_deadline_though_its_worker_beats(
    db: Database, hand: Hand, submit: Any
) -> None:
    submit(2)
    hung, heir = hand(), hand()
    (lease,) = hung.claim()
    db.rows("update pipeline.task set run_deadline = now() - interval '1 s' returning 1")
    hung.beat(lease)
    (taken,) = heir.claim()
    assert taken["task_id"] == lease["task_id"]
    assert hung.beat(lease)["lost"] == [str(lease["token"])]


def test_suspects_run_alone_and_poison_does_not_take_its_neighbours_along(
    db: Database, hand: Hand, submit: Any
) -> None:
    execution = submit(8)  # four batches; batch 2 kills whoever works on it
    committed: set[int] = set()
    for _ in range(20):
        one = hand()
        leases = one.claim(4)
        if not leases:
            break
        if any(lease["alone"] for lease in leases):
            assert len(leases) == 1
        if any(lease["batch"] == 2 for lease in leases):
            one.die()
        else:
            one.finish(*leases)
            committed |= {lease["batch"] for lease in leases}
    assert committed == {0, 1, 3}
    (letter,) = db.rows("select * from pipeline.dead_letters()")
    assert (letter["batch"], letter["reason"], letter["attempts"]) == (2, "attempts_exhausted", 3)
    assert state(db, execution)["status"] == "blocked"


def test_a_worker_with_a_suspect_gets_nothing_beside_it(db: Database, hand: Hand, submit: Any) -> None:
    submit(6)
    dead, heir = hand(), hand()
    dead.claim(1)
    dead.die()
    (suspect,) = heir.claim(5)
    assert suspect["alone"]
    assert heir.claim(5) == []
    heir.finish(suspect)
    assert len(heir.claim(5)) == 2


def test_a_suspect_goes_before_its_equals_and_after_work_of_a_higher_priority(
    db: Database, hand: Hand, submit: Any
) -> None:
    low = submit(2, key="low")
    dead = hand()
    dead.claim()
    dead.die()
    urgent, equal = submit(2, key="urgent", priority=5), submit(2, key="equal")
    heir = hand(kinds=["batch"])
    order = []
    for _ in range(3):
        (lease,) = heir.claim()
        order.append((lease["execution"], lease["alone"]))
        heir.finish(lease)
    assert order == [(urgent, False), (low, True), (equal, False)]


def test_p10_a_busy_worker_comes_to_rest_for_a_suspect_that_waits(db: Database, hand: Hand, submit: Any) -> None:
    submit(6)
    dead, busy = hand(), hand()
    dead.claim(1)
    (mine,) = busy.claim(1)
    dead.die()
    assert len(busy.claim(1)) == 1  # a suspect just found does not hold anyone up
    db.rows("update pipeline.task set ready_at = now() - interval '1 min' where suspect returning 1")
    assert busy.claim(1) == []
    busy.finish(mine)


def test_a_released_task_is_handed_back_uncounted(db: Database, hand: Hand, submit: Any) -> None:
    submit(2)
    one = hand()
    for _ in range(5):
        (lease,) = one.claim()
        assert lease["attempt"] == 1
        assert one.release(lease) == {"outcome": "released"}
        assert one.release(lease) == {"outcome": "released"}


def test_a_paused_queue_gives_nothing_until_it_is_resumed(db: Database, hand: Hand, submit: Any) -> None:
    execution = submit(2)
    executions.pause(db, "default", "deploying")
    assert hand().claim() == []
    (reason,) = [r for r in executions.explain(db, execution) if r.what == "paused"]
    assert "deploying" in reason.detail
    executions.resume(db, "default")
    assert len(hand().claim()) == 1


def test_a_named_batch_can_be_claimed_also_while_it_backs_off(db: Database, worker: Any, submit: Any) -> None:
    submission.configure_queue(db, "default", backoff_base="1 hour", backoff_cap="1 hour")
    execution = submit(6)
    one = worker()
    (lease,) = one.claim(1, execution=execution, batches=[1])
    assert lease.batch == 1
    one.fail(lease, "not now")
    assert one.claim(1, execution=execution, batches=[1])[0].batch == 1


@pytest.mark.parametrize(
    "malformed",
    [
        {"execution_id": 99, "generation": 1, "batch": 0},
        {},
        {"execution_id": 1, "generation": 7, "batch": 0},
        {"execution_id": 1, "generation": 1, "batch": 77},
        {"execution_id": 1, "generation": 1},
        {"execution_id": 1, "generation": 1, "batch": 0, "payload": [1]},
    ],
)
def test_a5_malformed_work_becomes_a_dead_letter_at_once(
    db: Database, hand: Hand, submit: Any, malformed: dict[str, Any]
) -> None:
    submit(1, priority=-1)
    send(db, "default", [{"key": "bad", "kind": "batch", "pipeline": "orders", **malformed}])
    (lease,) = hand().claim(10)
    assert lease["priority"] == -1
    (letter,) = db.rows("select * from pipeline.dead_letters()")
    assert (letter["reason"], letter["attempts"]) == ("malformed", 0)
    assert letter["error"]


@pytest.mark.parametrize("ended", ["cancelled", "another generation"])
@pytest.mark.parametrize("sweep", [True, False])
def test_lesson_a6_a_batch_task_that_came_by_send_for_an_ended_execution_is_not_silently_gone(
    db: Database, hand: Hand, submit: Any, ended: str, sweep: bool
) -> None:
    """Neither by a claim nor by the reaper, which both clear away what an ended execution left."""
    execution = submit(4)
    one = hand()
    if ended == "cancelled":
        db.rows("select pipeline.cancel(%s, 'test')", (execution,))
    else:
        while leases := one.claim(10):
            one.finish(*leases)
        db.rows("select pipeline.rerun(%s)", (execution,))
    (row,) = db.rows("select id from pipeline.execution")
    (sent,) = send(
        db,
        "default",
        [{"key": "x", "kind": "batch", "pipeline": "orders", "execution_id": row["id"], "generation": 1, "batch": 0}],
    )
    if sweep:
        db.rows("select pipeline.reap()")
    one.claim(10)
    (letter,) = db.rows("select * from pipeline.dead_letter")
    assert (letter["task_id"], letter["reason"]) == (sent.task_id, "malformed")
    assert "not from send" in letter["error"]


@pytest.mark.parametrize("policy", ["strict", "partial"])
def test_a_batch_task_that_came_by_send_is_malformed_and_touches_no_barrier(
    db: Database, hand: Hand, submit: Any, policy: str
) -> None:
    submission.register_pipeline(db, "orders", batch_files=2, policy=policy)
    execution = submit(4)
    number = db.value("select id from pipeline.execution")
    twin = {"key": "twin", "kind": "batch", "pipeline": "orders", "execution_id": number, "generation": 1, "batch": 0}
    send(db, "default", [twin])
    one = hand()
    assert [lease["batch"] for lease in one.claim(10)] == [0, 1]
    assert [row["reason"] for row in db.rows("select * from pipeline.dead_letters()")] == ["malformed"]
    assert (state(db, execution)["settled"], state(db, execution)["remaining"]) == (0, 2)


def test_work_of_another_kind_may_name_an_execution_and_outlives_it(db: Database, hand: Hand, submit: Any) -> None:
    submit(2)
    one = hand(kinds=["batch", "callback"])
    one.finish(*one.claim())
    one.finish(*one.claim())
    number = db.value("select id from pipeline.execution")
    mail = {"kind": "mail", "execution_id": number, "generation": 1}
    send(db, "default", [{"key": str(n), **mail} for n in range(3)])
    post = hand(kinds=["mail"])
    first, second, third = post.claim(3)
    assert post.finish(first)[0]["outcome"] == "committed"
    post.release(second)
    assert len(post.claim(3)) == 1
    assert "dead_letter" in post.fail(third, retryable=False)


def test_poison_claimed_by_name_runs_alone_too_and_ends(db: Database, hand: Hand, submit: Any) -> None:
    execution = submit(4)
    for _ in range(12):
        one = hand()
        leases = db.rows("select * from pipeline.claim(%s, %s, 2, '', %s)", (one.id, uuid4(), execution))
        if not leases:
            break
        one.die()
    assert {row["reason"] for row in db.rows("select * from pipeline.dead_letters()")} == {"attempts_exhausted"}


def test_of_the_busy_workers_only_one_rests_for_a_suspect(db: Database, hand: Hand, submit: Any) -> None:
    submit(20)
    dead, one, two = hand(), hand(), hand()
    dead.claim(1)
    one.claim(1)
    two.claim(2)
    dead.die()
    db.rows("select pipeline.reap()")
    db.rows("update pipeline.task set ready_at = now() - interval '6 s' where suspect returning 1")
    assert len(two.claim(1)) == 1
    assert one.claim(1) == []


def test_an_execution_key_is_its_own_however_many_there_were(db: Database, submit: Any) -> None:
    db.rows("select setval(pg_get_serial_sequence('pipeline.execution', 'id'), 65534)")
    keys = [submit(1, key=str(n)) for n in range(5)]
    assert len(set(keys)) == 5


def test_a_stopped_worker_can_claim_no_more(db: Database, hand: Hand) -> None:
    one = hand()
    db.rows("select pipeline.stop_worker(%s)", (one.id,))
    with pytest.raises(WorkerUnknown):
        one.claim()


def test_stale_tasks_of_an_ended_execution_leave_the_queue_on_the_way(db: Database, hand: Hand, submit: Any) -> None:
    cancelled = submit(60, key="a")
    executions.cancel(db, cancelled, "no")
    wanted = submit(2, key="b")
    assert [x["execution"] for x in hand().claim(1)] == [wanted]
    assert db.value("select count(*) from pipeline.task") == 1
