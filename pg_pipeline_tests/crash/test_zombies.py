"""Processes that stop (SIGSTOP) past their lease and wake up again: the dead don't write."""

import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import psycopg

from pg_pipeline.coordination import executions
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish, Finished
from pg_pipeline.coordination.worker import Worker
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.crash.recovery import answer, go_on, leases, outcomes, stopped, whole
from pg_pipeline_tests.helpers import ChildProcess, wait_until

Act = Callable[..., ChildProcess]


def test_p3_a_zombie_that_wakes_up_gets_lease_lost_and_is_remembered_as_fenced(
    brisk: Database, submit: Any, act: Act
) -> None:
    """Stopped, it still holds its session's lock: a held lock never extends a lease."""
    submit(2)
    zombie = act("drain", "note_output.after_commit", action="stop", tolerant=True)
    stopped(zombie)
    go_on(brisk)
    assert outcomes(brisk) == {"lost": 1, "committed": 1}
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == 0, zombie.stderr
    assert "lost " in zombie.stdout
    assert answer(zombie) == 0
    assert outcomes(brisk) == {"fenced": 1, "committed": 1}
    whole(brisk)


def test_p3_a_zombie_of_an_execution_that_was_cancelled_meanwhile_shows_nothing(
    brisk: Database, submit: Any, act: Act
) -> None:
    execution = submit(2)
    zombie = act("drain", "note_output.after_commit", action="stop", tolerant=True)
    stopped(zombie)
    executions.cancel(brisk, execution, "test")
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == 0, zombie.stderr
    assert "lost " in zombie.stdout
    assert brisk.rows("select path from public.sink") == []
    whole(brisk, state="cancelled")


def test_p10_a_process_stopped_inside_its_finish_does_not_hold_its_task_for_ever(
    brisk: Database, submit: Any, act: Act
) -> None:
    """Claims pass over a locked task, so Postgres must end whoever idles with one."""
    submit(2)
    soon = f"{brisk.dsn}&options={quote('-c idle_in_transaction_session_timeout=300')}"
    zombie = act("drain", "finish.after_lock", action="stop", tolerant=True, dsn=soon)
    stopped(zombie)
    go_on(brisk)
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == 0, zombie.stderr
    assert outcomes(brisk) == {"fenced": 1, "committed": 1}
    whole(brisk)


def test_p10_a_finish_and_a_submit_that_idle_are_bounded_by_themselves(
    brisk: Database, submit: Any, worker: Callable[..., Worker]
) -> None:
    submit(2)
    seen: list[str] = []
    show = "show idle_in_transaction_session_timeout"
    one = worker()
    (lease,) = one.claim()
    one.finish(
        lease, {}, lambda conn: seen.append(conn.execute(show).fetchone()["idle_in_transaction_session_timeout"])
    )
    with brisk.connect() as conn, conn.transaction():
        conn.execute("select pipeline.lock_ledger('orders')")
        row = conn.execute(show).fetchone()
        assert row is not None
        seen.append(row["idle_in_transaction_session_timeout"])
    assert seen == ["2min", "15min"]
    assert brisk.value(show) == "0"


def test_a_batch_whose_publish_times_out_or_deadlocks_does_not_sink_the_others(
    brisk: Database, submit: Any, worker: Callable[..., Worker]
) -> None:
    """Only a lost connection is everybody's trouble."""
    submit(4)
    one = worker()
    slow, good = one.claim(2)

    def times_out(conn: psycopg.Connection[Any]) -> None:
        conn.execute("set local statement_timeout = '20 ms'")
        conn.execute("select pg_sleep(10)")

    outcome, committed = one.finish_many([Finish(slow, {}, times_out), Finish(good, {})])
    assert isinstance(outcome, psycopg.errors.QueryCanceled)
    assert isinstance(committed, Finished)
    one.release(slow)


def test_a_lost_lease_is_told_at_once(brisk: Database, submit: Any, act: Act, worker: Callable[..., Worker]) -> None:
    """The thief commits, and the victim's next beat says so, while it still works."""
    submit(2)
    told: list[tuple[int, str]] = []
    victim = worker(heartbeat_interval=0.05, on_lost=lambda lease, why: told.append((lease.task_id, why)))
    (lease,) = victim.claim()
    brisk.rows("update pipeline.task set run_deadline = now() returning 1")
    go_on(brisk)
    wait_until(lambda: told, what="the victim to hear of it")
    assert told == [(lease.task_id, "another worker took it over")]
    whole(brisk)


def test_p3_two_zombies_of_one_batch_and_the_row_is_there_once(brisk: Database, submit: Any, act: Act) -> None:
    submit(2)
    zombies = []
    for _ in range(2):
        zombies.append(act("drain", "note_output.after_commit", action="stop", tolerant=True))
        stopped(zombies[-1])
        brisk.rows("update pipeline.task set run_deadline = now() where token is not null returning 1")
    go_on(brisk)
    for zombie in zombies:
        zombie.signal(signal.SIGCONT)
    assert [zombie.wait() for zombie in zombies] == [0, 0]
    tokens = {lease["token"] for zombie in zombies for lease in leases(zombie)}
    assert len(tokens) == 2
    assert outcomes(brisk) == {"fenced": 2, "committed": 1}
    whole(brisk)


def test_a_live_worker_keeps_what_it_holds_while_others_are_reaped(
    brisk: Database, submit: Any, act: Act, worker: Callable[..., Worker]
) -> None:
    submit(4)
    live = worker(heartbeat_interval=0.05)
    (held,) = live.claim()
    zombie = act("drain", "note_output.after_commit", action="stop", tolerant=True)
    stopped(zombie)
    other = worker(heartbeat_interval=0.05)
    (taken,) = other.claim_or_wait(1, timeout=20, poll=0.05)
    assert taken.batch != held.batch
    actor.process(other, taken)
    actor.process(live, held)
    zombie.kill9()
    go_on(brisk)
    whole(brisk)
