"""Claim, heartbeat, finish and stop, at the same moment."""

import threading
from collections.abc import Callable
from uuid import uuid4

import pytest

from pg_pipeline.coordination import failpoints, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.races.sessions import Session, at_once

Open = Callable[[], Session]
ROUNDS = 15


def send(db: Database, *keys: str) -> None:
    submission.send(db, "default", [{"key": key, "kind": "job"} for key in keys])


def test_p2_eight_claimers_and_one_task(db: Database, session: Open) -> None:
    claimers = [session().register() for _ in range(8)]
    for number in range(ROUNDS):
        send(db, f"task-{number}")
        answers = at_once(*(one.claim for one in claimers))
        won = [(one, leases) for one, leases in zip(claimers, answers, strict=True) if leases]
        assert len(won) == 1, answers
        ((one, (lease,)),) = won
        assert one.finish(lease)[0]["outcome"] == "committed"


def test_eight_claimers_share_tasks_without_overlap(db: Database, session: Open) -> None:
    claimers = [session().register() for _ in range(8)]
    send(db, *(f"task-{number}" for number in range(100)))
    answers = at_once(*(lambda one=one: one.claim(20) for one in claimers))
    taken = [lease["task_id"] for leases in answers for lease in leases]
    assert len(taken) == len(set(taken)) == 100, answers


def test_a_claim_asked_again_while_the_first_runs_waits_and_gets_its_leases(db: Database, session: Open) -> None:
    send(db, "a", "b")
    one, again = session().register(), session()
    again.id = one.id
    claim_id = uuid4()
    one.begin()
    first = one.claim(1, claim_id)
    second = again.start(again.claim, 1, claim_id)
    again.seen_waiting(second)
    one.commit()
    assert second.result(10) == first


def test_p3_finish_against_steal(db: Database, session: Open) -> None:
    stolen = 0
    thief = session().register()
    for number in range(ROUNDS):
        send(db, f"task-{number}")
        victim = session().register()
        (lease,) = victim.claim()
        victim.vanish()
        ((finished,), taken) = at_once(lambda v=victim, x=lease: v.finish(x), thief.claim)
        if taken:
            stolen += 1
            assert taken[0]["token"] != lease["token"]
            assert finished["outcome"] == "lost"
            assert thief.finish(*taken)[0]["outcome"] == "committed"
        else:
            assert finished["outcome"] == "committed"
        committed = "select count(*) from pipeline.attempt where task_id = %s and outcome = 'committed'"
        assert db.value(committed, (lease["task_id"],)) == 1
        victim.close()
        victim.close = lambda: None  # type: ignore[method-assign]


def test_p3_a_finish_that_holds_its_task_can_not_be_robbed(db: Database, session: Open) -> None:
    send(db, "a")
    victim, thief = session().register(), session().register()
    (lease,) = victim.claim()
    victim.vanish()
    victim.begin()
    victim.rows("select pipeline.lock_leases(%s, %s)", ([lease["task_id"]], [lease["token"]]))
    assert thief.claim() == []
    victim.finish(lease)
    victim.commit()
    assert thief.claim() == []
    assert db.value("select outcome from pipeline.attempt where token = %s", (lease["token"],)) == "committed"


def test_p3_a_finish_that_waited_for_the_thief_is_told_that_it_lost(db: Database, session: Open) -> None:
    send(db, "a")
    victim, thief = session().register(), session().register()
    (lease,) = victim.claim()
    victim.vanish()
    thief.begin()
    (taken,) = thief.claim()
    finish = victim.start(victim.finish, lease)
    victim.seen_waiting(finish)
    thief.commit()
    assert finish.result(10)[0]["outcome"] == "lost"
    assert db.value("select outcome from pipeline.attempt where token = %s", (lease["token"],)) == "fenced"
    assert thief.finish(taken)[0]["outcome"] == "committed"


def test_a_finish_that_holds_its_task_does_not_stall_the_heartbeat(db: Database, session: Open) -> None:
    send(db, "a", "b")
    one, heart = session().register(), session()
    heart.id = one.id
    held, _unknown = one.claim(2)
    one.begin()
    one.rows("select id from pipeline.task for update")
    heart.rows("set lock_timeout = '100 ms'")  # waiting at all is the failure
    before = db.value("select beat_at from pipeline.worker where id = %s", (one.id,))
    assert heart.beat(held)["lost"] == []
    assert db.value("select beat_at from pipeline.worker where id = %s", (one.id,)) > before
    one.rollback()


def test_a_beat_under_way_does_not_hand_back_what_was_claimed_since(
    db: Database, worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beat lists what the process holds, a claim comes back, and only then Postgres hears the list."""
    send(db, "a")
    listed, claimed = threading.Event(), threading.Event()
    one = worker(heartbeat_interval=0.02)

    def hit(name: str) -> None:
        if name == "heartbeat.before_beat" and not claimed.is_set():
            listed.set()
            assert claimed.wait(30)

    monkeypatch.setattr(failpoints, "hit", hit)
    assert listed.wait(30)
    (lease,) = one.claim()
    beaten = one.last_beat
    claimed.set()
    wait_until(lambda: one.last_beat > beaten, what="the beat to come through")
    assert one.finish(lease).lease == lease


def test_stop_worker_waits_for_a_finish_and_leaves_it_its_task(db: Database, session: Open) -> None:
    send(db, "a", "b")
    one, stopper = session().register(), session()
    finishing, other = one.claim(2)
    one.begin()
    one.finish(finishing)
    stop = stopper.start(stopper.value, "select pipeline.stop_worker(%s)", (one.id,))
    stopper.seen_waiting(stop)
    one.commit()
    assert stop.result(10) == 1
    outcomes = {row["token"]: row["outcome"] for row in db.rows("select token, outcome from pipeline.attempt")}
    assert outcomes == {finishing["token"]: "committed", other["token"]: "released"}


def test_stop_worker_against_finish(db: Database, session: Open) -> None:
    next_one = session().register()
    for number in range(ROUNDS):
        send(db, f"task-{number}")
        one, stopper = session().register(), session()
        (lease,) = one.claim()
        ((finished,), released) = at_once(
            lambda one=one, x=lease: one.finish(x),
            lambda one=one, s=stopper: s.value("select pipeline.stop_worker(%s)", (one.id,)),
        )
        handed_back = next_one.claim()
        assert (finished["outcome"], released, len(handed_back)) in [("committed", 0, 0), ("released", 1, 1)]
        if handed_back:
            next_one.finish(*handed_back)


def test_beats_claims_and_finishes_of_one_worker_never_wait_for_each_other_in_a_circle(
    db: Database, worker: Callable[..., Worker]
) -> None:
    one = worker(heartbeat_interval=0.001)
    send(db, *(f"task-{number}" for number in range(60)))

    def work() -> int:
        done = 0
        while leases := one.claim(1):
            one.finish(leases[0])
            done += 1
        return done

    assert sum(at_once(*(work for _ in range(4)))) == 60


def test_the_reaper_leaves_a_worker_that_is_claiming(db: Database, session: Open) -> None:
    """Old by its last beat, yet alive: pruned with a fresh lease, nobody would ever find that lease again."""
    send(db, "a")
    one, reaper = session().register(), session()
    db.rows("update pipeline.worker set beat_at = beat_at - interval '1 day' returning 1")
    one.begin()
    (lease,) = one.claim()
    assert reaper.value("select pipeline.reap()")["workers"] == 0
    one.commit()
    db.rows("update pipeline.worker set beat_at = clock_timestamp() returning 1")
    assert one.finish(lease)[0]["outcome"] == "committed"
