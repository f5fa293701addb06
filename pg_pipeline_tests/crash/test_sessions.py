"""Postgres refuses, waits or hangs up: timeouts, deadlocks, ended sessions, old transactions, a full disk."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest

from pg_pipeline.coordination import dead_letters, executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish, Finished
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline_tests.coordination.conftest import audit, files
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.crash.conftest import Receiver
from pg_pipeline_tests.crash.recovery import go_on, stopped, whole
from pg_pipeline_tests.crash.stories import BY_POINT, recover
from pg_pipeline_tests.crash.test_matrix import SAMPLE
from pg_pipeline_tests.helpers import ChildProcess, wait_until

# Nothing of these waits inside Postgres, or it is the migration's own story.
STOPPABLE = [point for point in sorted(BY_POINT) if not point.startswith("stop_worker")]


@pytest.mark.parametrize("point", [pytest.param(p, marks=() if p in SAMPLE else pytest.mark.long) for p in STOPPABLE])
def test_sessions_that_are_ended_here_cost_nothing(
    brisk: Database, act: Callable[..., ChildProcess], receiver: Receiver, point: str
) -> None:
    """pg_terminate_backend of every session of a process that is just there: it may go on or give up."""
    story = BY_POINT[point]
    given: dict[str, Any] = story.prepare(brisk, receiver.url)
    before = {row["pid"] for row in brisk.rows(SESSIONS)}
    process = act(story.verb, point, action="stop", **({"tolerant": True} if story.verb == "drain" else {}), **given)
    stopped(process)
    theirs = [row["pid"] for row in brisk.rows(SESSIONS) if row["pid"] not in before]
    for pid in theirs:
        brisk.rows("select pg_terminate_backend(%s, 10000)", (pid,))
    process.signal(signal.SIGCONT)
    assert process.wait() in (0, 1), process.stderr
    recover(brisk, story, given)


SESSIONS = """select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
              and backend_type = 'client backend'"""


# What an operation waits for, the operation, and the same question asked again when nobody is in the way.
Ask = Callable[[Database], Any]


def _submit(db: Database) -> Any:
    return submission.submit(db, "orders", files(2, "more"), request_key="more").taken


class Waits:
    """One execution with a lease and a dead letter, and questions that wait for a lock of another session."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.execution = submission.submit(db, "orders", files(6), request_key="k").execution
        self.worker = Worker(db, heartbeat_interval=0.05)
        doomed, self.lease, self.other = self.worker.claim(3)
        letter = self.worker.fail(doomed, "boom", retryable=False).dead_letter
        assert letter is not None
        self.letter = letter
        self.request = uuid4()

    def ask(self, name: str) -> tuple[str, Ask]:
        """The statement that stands in the way, and the question."""
        execution = "select from pipeline.execution for update"
        letter = "select from pipeline.dead_letter for update"
        return {
            "submit": ("select pipeline.lock_ledger('orders')", _submit),
            "finish": (execution, self._finish),
            "cancel": (execution, lambda db: executions.cancel(db, self.execution, "x", request_id=self.request)),
            "replay": (letter, lambda db: dead_letters.replay(db, self.letter, request_id=self.request)),
            "discard": (letter, lambda db: dead_letters.discard(db, self.letter, "x", request_id=self.request)),
            "release": ("select from pipeline.task for update", lambda db: self._settle(db, "release")),
            "fail": ("select from pipeline.task for update", lambda db: self._settle(db, "fail")),
        }[name]

    def _finish(self, db: Database) -> Any:
        return db.value(
            "select outcome from pipeline.finish(%s, %s, array['{}'::jsonb])",
            ([self.lease.task_id], [self.lease.token]),
        )

    def _settle(self, db: Database, verb: str) -> Any:
        if verb == "release":
            return db.value("select pipeline.release(%s, %s)", (self.lease.task_id, self.lease.token))["outcome"]
        return db.value("select pipeline.fail(%s, %s, 'x', 'x')", (self.lease.task_id, self.lease.token))["outcome"]


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
@pytest.mark.parametrize("name", ["submit", "finish", "cancel", "replay", "discard", "release", "fail"])
def test_a_question_that_runs_into_a_timeout_changes_nothing_and_can_be_asked_again(
    brisk: Database, name: str, limit: str
) -> None:
    waits = Waits(brisk)
    waits.worker._heartbeat.stop()  # nothing but the question may change anything
    in_the_way, ask = waits.ask(name)
    before = said(brisk)
    with Database(f"{brisk.dsn}&options={quote(f'-c {limit}=100')}") as hasty, brisk.connect() as blocker:
        with blocker.transaction():
            blocker.execute(in_the_way.encode())
            with pytest.raises((psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)):
                ask(hasty)
            assert said(brisk) == before
        answer = ask(hasty)
    assert answer
    if name not in ("release", "fail"):
        assert ask(brisk) == answer
    waits.worker.stop()
    dead_letters.replay_many(brisk)
    go_on(brisk)
    assert audit(brisk) == []


def said(db: Database) -> list[str]:
    tables = ("execution", "batch", "task", "attempt", "dead_letter", "outbox", "file", "action")
    return [
        row["row"] for table in tables for row in db.rows(f"select t::text as row from pipeline.{table} t order by 1")
    ]


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_heartbeat_that_runs_into_a_timeout_goes_on_and_the_lease_is_kept(brisk: Database, limit: str) -> None:
    """Whoever holds the worker's row for a while costs beats, not the worker."""
    submission.configure_queue(brisk, "default", lease="20 s")
    submission.submit(brisk, "orders", files(2), request_key="k")
    with (
        Database(f"{brisk.dsn}&options={quote(f'-c {limit}=100')}") as hasty,
        Worker(hasty, heartbeat_interval=0.05) as one,
        brisk.connect() as blocker,
    ):
        (lease,) = one.claim()
        with blocker.transaction():
            blocker.execute("select from pipeline.worker for update")
            held = one.last_beat
            cut = """select count(*) from pg_stat_activity
                     where query like '%%pipeline.beat%%' and wait_event_type = 'Lock'"""
            for _ in range(3):  # three beats that wait and are cut off
                wait_until(lambda: brisk.value(cut), what="a beat to wait for the row")
                wait_until(lambda: not brisk.value(cut), what="that beat to be cut off")
            assert one.last_beat == held
        wait_until(lambda: one.last_beat > held, what="the worker to beat again")
        actor.process(one, lease)
    go_on(brisk)
    whole(brisk)


def test_of_two_publishes_that_deadlock_one_commits_and_the_other_can_try_again(brisk: Database) -> None:
    """What a sink locks is its own affair: Postgres ends one, which costs that batch an attempt and nothing else."""
    with psycopg.connect(brisk.dsn, autocommit=True) as conn:
        conn.execute("create table public.totals (id int primary key); insert into public.totals values (1), (2)")
    submission.submit(brisk, "orders", files(4), request_key="k")
    both_have_one = threading.Barrier(2)

    def publish(first: int, second: int) -> Callable[[Any], None]:
        asked = []

        def lock(conn: Any) -> None:
            conn.execute("set local deadlock_timeout = '50 ms'")
            conn.execute("select from public.totals where id = %s for update", (first,))
            if not asked:
                asked.append(1)
                both_have_one.wait(timeout=30)
            conn.execute("select from public.totals where id = %s for update", (second,))

        return lock

    with Worker(brisk, heartbeat_interval=0.05) as one, Worker(brisk, heartbeat_interval=0.05) as other:
        pairs = [(one, *one.claim(), publish(1, 2)), (other, *other.claim(), publish(2, 1))]
        outcomes: dict[int, Any] = {}

        def finish(index: int) -> None:
            worker, lease, lock = pairs[index]
            (outcomes[index],) = worker.finish_many([Finish(lease, {}, lock)])

        threads = [threading.Thread(target=finish, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(type(outcome).__name__ for outcome in outcomes.values()) == ["DeadlockDetected", "Finished"]
        victim = next(index for index, outcome in outcomes.items() if not isinstance(outcome, Finished))
        worker, lease, lock = pairs[victim]
        assert isinstance(worker.finish_many([Finish(lease, {}, lock)])[0], Finished)
    go_on(brisk)
    assert audit(brisk) == []
    assert brisk.rows("select state from pipeline.execution") == [{"state": "finished"}]


def test_an_old_transaction_that_is_held_open_holds_nobody_up(brisk: Database) -> None:
    """It sees the world of its time; the work goes on, and what it locked is passed over until it ends."""
    first = submission.submit(brisk, "orders", files(2, "first"), request_key="first").execution
    with brisk.connect() as old, old.transaction():
        old.execute("set transaction isolation level repeatable read")
        old.execute("select from pipeline.task for update")
        for number in range(10):
            submission.submit(brisk, "orders", files(6, f"n{number}"), request_key=str(number))
        actor.drain(brisk)
        states = brisk.rows("select key, state from pipeline.execution order by id")
        assert [row["state"] for row in states] == ["sealed", *["finished"] * 10]
        assert old.execute("select count(*) as n from pipeline.execution").fetchone() == {"n": 1}
        why = [reason.what for reason in executions.explain(brisk, first)]
        assert why, "a waiting execution is explained"
    go_on(brisk)
    whole(brisk)


@contextmanager
def attached(server: EmbeddedServer, file_size: int) -> Iterator[Database]:
    """The server, started so that none of its files can become larger than this."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, unlimited[1]))
    try:
        server.attach()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    migrate(server.dsn())
    with Database(server.dsn()) as database:
        yield database
    server.detach()
    wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")


def test_a_publish_that_finds_no_room_shows_nothing_and_goes_through_when_there_is(session_dir: Path) -> None:
    """A limit on the size of files stands in for the disk that is full: Postgres cannot make the table larger."""
    server = EmbeddedServer(session_dir / "small", linger=0)

    def large(conn: Any) -> None:
        conn.execute("insert into public.big select repeat('x', 7000) from generate_series(1, 4000)")

    with attached(server, 20 << 20) as db:  # a segment of Postgres's own log has 16 MB
        with psycopg.connect(db.dsn, autocommit=True) as conn:
            conn.execute("create table public.big (filler text)")
            conn.execute("alter table public.big alter column filler set storage plain")
        submission.configure_queue(db, "default", lease="20 s", breaker_after=0)
        submission.register_pipeline(db, "orders", batch_files=2)
        submission.submit(db, "orders", files(4), request_key="k")
        with Worker(db, heartbeat_interval=0.1) as one:
            big, small = one.claim(2)
            refused, committed = one.finish_many([Finish(big, {}, large), Finish(small, {})])
            assert isinstance(refused, psycopg.Error)
            assert "could not extend file" in str(refused)
            assert isinstance(committed, Finished)
            assert db.value("select count(*) from public.big") == 0
            assert audit(db) == []
    with attached(server, resource.RLIM_INFINITY) as db:
        with Worker(db, heartbeat_interval=0.1) as one:
            (again,) = one.claim()
            assert again.batch == big.batch
            one.finish(again, {}, large)
            assert db.value("select count(*) from public.big") == 4000
            one.finish(*one.claim())
        assert audit(db) == []
        assert db.rows("select state from pipeline.execution") == [{"state": "finished"}]
