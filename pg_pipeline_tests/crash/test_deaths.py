"""Where a process can die, and what then happens: the rows of the table, each with what only it can show."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pg_pipeline.coordination import migrations
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline_tests.coordination.conftest import files, state
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.crash.conftest import Receiver
from pg_pipeline_tests.crash.recovery import go_on, killed, leases, outcomes, whole
from pg_pipeline_tests.helpers import PROJECT, ChildProcess, wait_until

Act = Callable[..., ChildProcess]


def test_before_submit_commits_nothing_exists(brisk: Database, act: Act) -> None:
    killed(act("submit", "submit.before_commit", files=5, key="k"))
    for table in ("execution", "file", "batch", "task"):
        assert brisk.rows(f"select 1 from pipeline.{table}") == [], table


def test_after_submit_commits_asking_again_returns_the_same_execution(brisk: Database, act: Act) -> None:
    killed(act("submit", "submit.after_commit", files=5, key="k"))
    (row,) = brisk.rows("select key from pipeline.execution")
    again = actor.submission.submit(brisk, "orders", files(5), request_key="k")
    assert (again.execution, again.created, again.taken) == (row["key"], False, 5)
    go_on(brisk)
    whole(brisk)


def test_lesson_d4_a_submit_of_many_batches_is_there_whole_or_not_at_all(brisk: Database, act: Act) -> None:
    """Killed between the fan-out and its commit, then after it: never a barrier without its tasks."""
    killed(act("submit", "submit.after_files", files=50, key="k"))
    assert brisk.value("select count(*) from pipeline.task") == 0
    killed(act("submit", "submit.after_commit", files=50, key="k"))
    assert brisk.value("select count(*) from pipeline.task") == 25
    go_on(brisk)
    whole(brisk)


def test_lesson_a1_a_worker_killed_between_claim_and_finish_loses_nothing(
    brisk: Database, submit: Any, act: Act
) -> None:
    submit(6)
    killed(act("drain", "note_output.after_commit", limit=3))
    assert brisk.value("select count(*) from pipeline.task where token is not null") == 3
    go_on(brisk)
    assert outcomes(brisk) == {"lost": 3, "committed": 3}
    whole(brisk)


def test_lesson_a7_the_work_of_a_dead_worker_is_claimable_without_any_restart_or_sweep(
    brisk: Database, submit: Any, act: Act, worker: Callable[..., Worker]
) -> None:
    """A worker that was there all along takes it over, by claiming."""
    execution = submit(2)
    one = worker(heartbeat_interval=0.05)
    killed(act("drain", "claim.after_commit"))
    (lease,) = one.claim_or_wait(1, timeout=20, poll=0.05)
    assert (lease.execution, lease.attempt) == (execution, 2)
    actor.process(one, lease)
    go_on(brisk)
    whole(brisk)


def test_lesson_d1_nothing_says_done_before_the_finish_commits(brisk: Database, submit: Any, act: Act) -> None:
    """Killed with everything written but the commit: no marker lets the next worker skip the batch."""
    submit(2)
    killed(act("drain", "finish.before_commit"))
    assert brisk.value("select state from pipeline.batch") == "waiting"
    go_on(brisk)
    assert outcomes(brisk) == {"lost": 1, "committed": 1}
    whole(brisk)


def test_p2_rows_published_but_not_committed_are_never_visible(brisk: Database, submit: Any, act: Act) -> None:
    submit(2)
    killed(act("drain", "finish.after_publish"))
    assert brisk.rows("select path from public.sink") == []
    go_on(brisk)
    assert brisk.value("select count(*) from public.sink") == 2
    whole(brisk)


def test_lesson_a3_after_finish_commits_asking_again_with_the_token_returns_the_stored_result(
    brisk: Database, submit: Any, act: Act
) -> None:
    submit(2)
    dead = act("drain", "finish.after_commit")
    killed(dead)
    (lease,) = leases(dead)
    (again,) = brisk.rows(
        "select * from pipeline.finish(%s, %s, %s)",
        ([lease["task_id"]], [lease["token"]], [Jsonb({"rows_in": 99})]),
    )
    assert (again["outcome"], again["result"]) == ("committed", {"rows_in": 2})
    assert brisk.value("select count(*) from public.sink") == 2
    go_on(brisk)
    whole(brisk)


@pytest.mark.parametrize(("point", "callbacks"), [("finish.before_commit:3", 0), ("finish.after_commit:3", 1)])
def test_lesson_d3_there_is_nothing_between_barrier_zero_and_the_callback(
    brisk: Database, submit: Any, act: Act, point: str, callbacks: int
) -> None:
    """Killed around the commit that settles the last batch: the callback is there exactly when zero is."""
    execution = submit(6)
    killed(act("drain", point))
    assert (state(brisk, execution)["remaining"] == 0) == bool(callbacks)
    made = "select count(*) from pipeline.task t join pipeline.lane l on l.id = t.lane_id where l.kind = 'callback'"
    assert brisk.value(made) == callbacks
    go_on(brisk)
    whole(brisk)


def test_lesson_c6_a_callback_killed_half_way_acts_once(brisk: Database, submit: Any, act: Act) -> None:
    execution = submit(2)
    killed(act("drain", "finish.before_commit:2"))
    assert brisk.rows("select event from pipeline.outbox") == []
    assert state(brisk, execution)["status"] == "sealed"
    go_on(brisk)
    assert outcomes(brisk, "callback") == {"lost": 1, "committed": 1}
    whole(brisk)


def test_p5_after_the_callback_commits_the_outbox_goes_on_and_nothing_repeats(
    brisk: Database, submit: Any, act: Act, receiver: Receiver
) -> None:
    actor.submission.register_pipeline(brisk, "orders", batch_files=2, notify=[receiver.url])
    execution = submit(2)
    killed(act("drain", "finish.after_commit:2"))
    assert state(brisk, execution)["status"] == "finished"
    actor.act(brisk, "deliver", {})
    assert receiver.keys == {f"{execution}:g1:finished:1": 1}
    whole(brisk)


def test_lesson_a4_a_delivery_that_is_repeated_carries_the_same_key(
    brisk: Database, submit: Any, act: Act, receiver: Receiver
) -> None:
    """Killed after the receiver had it and before that was noted: told again, under the key it was told with."""
    actor.submission.register_pipeline(brisk, "orders", batch_files=2, notify=[receiver.url])
    execution = submit(2)
    actor.drain(brisk)
    killed(act("deliver", "outbox.after_send"))
    brisk.rows("update pipeline.outbox set leased_until = now() where destination <> '' returning 1")
    assert actor.act(brisk, "deliver", {}) == 1
    assert receiver.keys == {f"{execution}:g1:finished:1": 2}


@pytest.mark.parametrize("point", ["migration.before_commit:2", "migration.after_commit:1"])
def test_a_migration_killed_half_way_is_whole_or_not_there_and_goes_on(
    empty_dsn: str, child: Callable[..., ChildProcess], point: str
) -> None:
    code = "import sys; from pg_pipeline.coordination.migrations import migrate; migrate(sys.argv[1])"
    killed(child(code, empty_dsn, env={"PG_PIPELINE_FAILPOINT": point}))
    first, *rest = sorted(path.stem for path in (PROJECT / "sql" / "migrations").glob("*.sql"))
    there = migrations.check(empty_dsn)
    assert (there.applied, there.pending) == ((first,), (*rest, migrations.REPEATABLE))
    assert migrations.migrate(empty_dsn) == [*rest, migrations.REPEATABLE]
    assert migrations.check(empty_dsn).current


def test_p9_a_crash_costs_the_batches_in_flight_not_the_run(brisk: Database, submit: Any, act: Act) -> None:
    submit(20)
    killed(act("drain", "note_output.after_commit:7", limit=2))
    assert brisk.value("select count(*) from pipeline.batch where state = 'committed'") == 6
    go_on(brisk)
    assert outcomes(brisk) == {"committed": 10, "lost": 2}
    whole(brisk)


def test_lesson_c3_a_worker_that_can_not_say_good_bye_costs_only_the_lease_time(
    brisk: Database, submit: Any, worker: Callable[..., Worker]
) -> None:
    """Its release meets a dead database: the error is not the caller's, and the claim suppresses nothing."""
    submit(2)
    unreachable = Database(brisk.dsn)
    leaving = Worker(unreachable, heartbeat_interval=0.05)
    assert len(leaving.claim()) == 1
    unreachable.close()
    unreachable.dsn = "host=/nonexistent"
    leaving.stop()
    assert len(worker(heartbeat_interval=0.05).claim_or_wait(1, timeout=20, poll=0.05)) == 1


def test_p3_the_output_of_an_attempt_is_discarded_only_after_a_transaction_ended_it(
    brisk: Database, submit: Any, act: Act
) -> None:
    """Dead for long, but not yet taken over: whoever looks the same may be alive and about to finish."""
    submit(2)
    killed(act("drain", "note_output.after_commit"))
    gone = "select 1 where pipeline._gone_workers('default') <> '{}'"
    wait_until(lambda: brisk.rows(gone), what="the worker to be missed")
    assert brisk.rows("select * from pipeline.orphaned_outputs()") == []
    actor.act(brisk, "reap", {})  # takes the task back, which ends the attempt
    assert brisk.value("select count(*) from public.discarded") == 1
    go_on(brisk)
    whole(brisk)


def test_two_recoveries_at_once_and_a_third_killed(brisk: Database, submit: Any, act: Act) -> None:
    """Recovery is work like any other: killing it too changes nothing."""
    submit(8)
    killed(act("drain", "finish.after_publish:2", limit=4))
    killed(act("drain", "claim.after_commit"))
    killed(act("reap", "reap.after_commit"))
    threads = [threading.Thread(target=go_on, args=(brisk,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole(brisk)


def test_lesson_c2_a_finish_that_meets_a_reaped_connection_is_asked_again(
    brisk: Database, submit: Any, worker: Callable[..., Worker]
) -> None:
    """The pooler, or an administrator, ended the idle session during the long task."""
    submit(2)
    one = worker(heartbeat_interval=0.05)
    (lease,) = one.claim()
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = %s"
    with psycopg.connect(brisk.dsn, autocommit=True) as conn:
        conn.execute(ended, (conn.info.dbname,))
    actor.process(one, lease)
    go_on(brisk)
    whole(brisk)
