"""The reaper against everything."""

import random
import threading
from collections.abc import Callable
from typing import Any

from pg_pipeline.coordination import dead_letters, executions, reaper, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost, NotFound, WrongState
from pg_pipeline_tests.coordination.conftest import audit, files
from pg_pipeline_tests.races.sessions import Session, at_once, drain

Open = Callable[[], Session]
EXECUTIONS = 60


def test_taking_back_waits_for_no_execution_so_a_finish_of_two_never_deadlocks_with_it(
    db: Database, submit: Any, session: Open
) -> None:
    """The reaper ends a late execution and would bury a lost batch of an earlier one, which a finish has locked."""
    submission.configure_queue(db, "default", max_attempts=1)
    early, late = submit(4, key="early"), submit(2, key="late")
    finisher, victim, thief = session().register(), session().register(), session()
    lost, settled_early, settled_late = finisher.claim(3)
    assert [x["execution"] for x in (lost, settled_early, settled_late)] == [early, early, late]
    db.rows(
        "update pipeline.task set worker = %s, suspect = true where id = %s returning 1", (victim.id, lost["task_id"])
    )
    victim.vanish()
    finisher.begin()
    finisher.finish(settled_early)
    assert thief.value("select pipeline.reap()")["tasks_taken_back"] == 0  # left to the next pass
    finisher.finish(settled_late)
    finisher.commit()
    assert thief.value("select pipeline.reap()")["tasks_taken_back"] == 1


def test_p10_the_reaper_against_everything(db: Database, worker: Callable[..., Worker], session: Open) -> None:
    """Submits, finishes, failures, crashes, cancels, re-runs, replays and discards under a busy reaper: nobody
    deadlocks, everything settles, and the audit is clean at every moment."""
    seed = random.randrange(10**9)
    submission.configure_queue(db, "default", max_attempts=2)
    submission.register_pipeline(db, "orders", batch_files=2, policy="strict")
    submission.register_pipeline(db, "partial", batch_files=2, policy="partial")
    submission.register_pipeline(db, "abort", batch_files=2, policy="abort")
    done = threading.Event()

    def until_done(step: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            while not done.is_set():
                step()

        return run

    def submits() -> None:
        dice = random.Random(seed)
        for number in range(EXECUTIONS):
            key = f"k{number}"
            name = dice.choice(["orders", "partial", "abort"])
            submission.submit(db, name, files(dice.randrange(1, 9), key), request_key=key)
            if number % 5 == 4:
                db.rows("update pipeline.execution set deadline = now() where request_key = %s returning 1", (key,))

    def works(number: int) -> Callable[[], None]:
        one = worker(heartbeat_interval=0.01)
        dice = random.Random(seed + number)

        def step() -> None:
            for lease in one.claim(3):
                try:
                    if dice.random() < 0.15:
                        one.fail(lease, "boom", retryable=dice.random() < 0.5)
                    elif dice.random() < 0.1:
                        one.release(lease)
                    else:
                        one.finish(lease, {})
                except LeaseLost:
                    pass

        return step

    victims = [session() for _ in range(20)]

    def crashes() -> None:
        if not victims:
            done.wait(0.05)
            return
        one = victims.pop().register()
        one.claim(1)
        one.vanish()

    people = random.Random(seed + 100)

    def operates() -> None:
        verb = people.choice(["cancel", "rerun", "replay", "replay_many", "discard"])
        try:
            if verb in ("cancel", "rerun"):
                rows = db.rows("select key from pipeline.execution order by random() limit 1")
                for row in rows:
                    if verb == "rerun":
                        executions.rerun(db, row["key"])
                    elif people.random() < 0.1:
                        executions.cancel(db, row["key"], "test")
            elif verb == "replay_many":
                dead_letters.replay_many(db, limit=3)
            else:
                for letter in dead_letters.listed(db, limit=1):
                    if verb == "replay":
                        dead_letters.replay(db, letter["id"])
                    else:
                        dead_letters.discard(db, letter["id"], "test")
        except (NotFound, WrongState):
            pass

    def reaps() -> None:
        reaper.reap(db, limit=5)

    def audits() -> None:
        assert audit(db) == []

    def stops() -> None:
        try:
            submits()
        finally:
            done.set()

    steps = [works(1), works(2), works(3), crashes, operates, operates, reaps, reaps, audits]
    outcomes = at_once(stops, *(until_done(step) for step in steps))
    assert not [outcome for outcome in outcomes if outcome is not None], f"seed {seed}: {outcomes}"
    settle(db, session())


def settle(db: Database, one: Session) -> None:
    """After the storm: what is left is finished, replayed until it is, or explained by its end."""
    one.register()
    reaper.reap(db)
    drain(one, db)
    while dead_letters.replay_many(db).replayed:
        drain(one, db)
    reaper.reap(db)
    assert db.value("select count(*) from pipeline.task") == 0
    assert db.rows("select key from pipeline.execution where state in ('open', 'sealed')") == []
