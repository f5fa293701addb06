"""Compaction writes the hot tables again, under their lock: bounded under a held transaction, and nothing is lost."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline_tests.coordination.conftest import audit, files
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.races.sessions import Session, at_once, drain

Open = Callable[[], Session]
COMPACT = "select pipeline.compact(1)"
BLOATED = "select pipeline._bloated()"


@pytest.fixture
def held(db: Database) -> Iterator[psycopg.Connection[Any]]:
    """Somebody's old transaction, which keeps vacuum from removing what died since."""
    with psycopg.connect(db.dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pipeline.pipeline")
        yield holder


def size(db: Database, table: str) -> int:
    return int(db.value("select pg_relation_size(%s::regclass)", (f"pipeline.{table}",)))


def test_the_hot_tables_stay_small_while_somebody_holds_an_old_transaction_open(
    db: Database, session: Open, held: psycopg.Connection[Any]
) -> None:
    one, limit, largest = session().register(), 65536, dict.fromkeys(("task", "worker", "lane"), 0)
    entries = Jsonb([{"key": str(n), "kind": "job", "payload": {"x": "y" * 100}} for n in range(100)])
    for number in range(40):
        one.rows(
            "select pipeline.send('default', %s)", (Jsonb([{**e, "key": f"{number}/{e['key']}"} for e in entries.obj]),)
        )
        leases = one.claim(100)
        one.rows("update pipeline.lane set floor = floor - interval '2 s'")  # so that each beat moves it
        for _ in range(10):
            one.beat(*leases)
        one.finish(*leases)
        while one.value("select pipeline.compact(%s)", (limit,)):
            pass
        largest = {name: max(most, size(db, name)) for name, most in largest.items()}
    assert largest["task"] < 3 * limit, largest
    assert largest["worker"] <= 16384, largest
    assert largest["lane"] <= 16384, largest


def test_a_beat_has_a_bloated_table_compacted(db: Database, worker: Callable[..., Worker]) -> None:
    (sent,) = submission.send(db, "default", [{"key": "kept", "kind": "job", "payload": {"kept": True}}])
    with psycopg.connect(db.dsn) as conn:
        conn.execute(
            "insert into pipeline.task (lane_id, max_attempts, ready_at) "
            "select 1, 1, '2000-01-01' from generate_series(1, 100000)"
        )
        conn.rollback()
    assert db.value(BLOATED) == "task"
    one = worker(heartbeat_interval=0.05)
    wait_until(lambda: db.value(BLOATED) is None, what="a beat to have the table compacted")
    assert size(db, "task") <= 8192
    (lease,) = one.claim()
    assert (lease.task_id, lease.payload) == (sent.task_id, {"kept": True})


@pytest.mark.parametrize("what", ["claim", "finish", "publish", "submit", "read"])
def test_compaction_gives_up_on_a_table_that_somebody_uses_and_pauses(
    db: Database, submit: Any, session: Open, what: str
) -> None:
    submit(4)
    one, other = session().register(), session()
    (lease,) = one.claim()
    one.begin()
    if what == "claim":
        one.claim()
    elif what == "finish":
        one.finish(lease)
    elif what == "publish":
        one.rows("select pipeline.lock_leases(%s, %s)", ([lease["task_id"]], [lease["token"]]))
    elif what == "submit":
        one.rows("select pipeline.submit('orders', 'late', array['/late'], array['1'], array[1::bigint])")
    else:
        one.rows("select * from pipeline.task")
    assert other.value(COMPACT) is None
    assert other.value("select pipeline._bloated(1)") is None  # not at once again
    one.commit()
    other.rows("select setval('pipeline.compact_after', 1)")
    assert other.value(COMPACT) == "task"
    assert other.value("select count(*) from pipeline.task") == 2 + (what == "submit") - (what == "finish")


def test_whoever_meets_a_compaction_waits_and_finds_all_as_it_was(db: Database, submit: Any, session: Open) -> None:
    submit(8)
    compactor, claimer, finisher, sender, auditor, watcher = (session() for _ in range(6))
    claimer.register(), finisher.register()
    (lease,) = finisher.claim()
    compactor.begin()
    assert compactor.value(COMPACT) == "task"
    calls = {
        claimer: claimer.start(claimer.claim, 2),
        finisher: finisher.start(finisher.finish, lease),
        sender: sender.start(
            sender.rows, "select * from pipeline.send('default', %s)", (Jsonb([{"key": "new", "kind": "job"}]),)
        ),
        auditor: auditor.start(auditor.rows, "select * from pipeline.audit()"),
        watcher: watcher.start(watcher.value, "select sum(value) from pipeline.metrics() where name = 'tasks'"),
    }
    for one, call in calls.items():
        one.seen_waiting(call)
    compactor.commit()
    claimed, finished, sent, violations, tasks = (call.result(30) for call in calls.values())
    assert len(claimed) == 2
    assert finished[0]["outcome"] == "committed"
    assert sent[0]["outcome"] == "created"
    assert violations == []
    assert tasks >= 3
    claimer.finish(*claimed)
    assert drain(claimer, db) == 3  # the last batch, the job, the callback


def test_a_compaction_that_dies_halfway_leaves_everything(db: Database, submit: Any, session: Open) -> None:
    submit(8)
    one = session().register()
    (lease,) = one.claim()
    before = db.rows("select * from pipeline.task order by id")
    with psycopg.connect(db.dsn) as dying:
        assert dying.execute(COMPACT).fetchone() == ("task",)
        db.rows("select pg_terminate_backend(%s)", (dying.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            dying.execute("select 1")
    assert db.rows("select * from pipeline.task order by id") == before
    assert one.finish(lease)[0]["outcome"] == "committed"
    assert audit(db) == []


def test_p10_compaction_is_never_the_third_in_a_circle(db: Database, submit: Any, session: Open) -> None:
    """A finish waits for an execution whose holder then comes to the task table, behind the compaction: it gives up."""
    submit(4)
    finisher, person, compactor = session().register(), session(), session()
    (lease,) = finisher.claim()
    person.begin()
    person.rows("select 1 from pipeline.execution for update")
    finish = finisher.start(finisher.finish, lease)
    finisher.seen_waiting(finish)
    compaction = compactor.start(compactor.value, COMPACT)
    person.rows("select * from pipeline.send('default', %s)", (Jsonb([{"key": "new", "kind": "job"}]),))
    assert compaction.result(30) is None
    person.commit()
    assert finish.result(30)[0]["outcome"] == "committed"


def test_a_snapshot_from_before_a_compaction_is_told_that_it_is_too_old(
    db: Database, submit: Any, session: Open
) -> None:
    """To it the task table is empty: an audit would cry wolf, a finish call its lease lost."""
    execution = submit(4)
    old, other = session().register(), session()
    (lease,) = old.claim()
    for call in (
        lambda: old.rows("select * from pipeline.audit()"),
        lambda: old.rows("select * from pipeline.explain(%s)", (execution,)),
        lambda: old.rows("select pipeline.reap()"),
        lambda: old.finish(lease),
    ):
        old.rows("begin isolation level repeatable read")
        old.rows("select 1 from pipeline.queue")
        assert other.value(COMPACT) == "task"
        with pytest.raises(psycopg.errors.SerializationFailure, match="compacted since"):
            call()
        old.rollback()
    assert old.finish(lease)[0]["outcome"] == "committed"


def test_compaction_wants_a_transaction_of_its_own(db: Database, session: Open) -> None:
    one = session()
    for begin in ("begin isolation level repeatable read", "begin"):
        one.rows(begin)
        one.rows("insert into pipeline.action values (%s, '', '', '{}')", (uuid4(),))
        with pytest.raises(Exception, match="compact needs a read committed transaction"):
            one.rows(COMPACT)
        one.rollback()


def test_compaction_against_everything(db: Database, submit: Any, session: Open) -> None:
    eight, compactor = [session().register() for _ in range(4)], session()

    def work(one: Session, number: int) -> int:
        done = 0
        for turn in range(6):
            submission.submit(db, "orders", files(4, f"{number}.{turn}"), request_key=f"{number}.{turn}")
            while leases := one.claim(3):
                one.beat(*leases)
                for lease in leases[1:]:
                    one.release(lease)
                one.finish(leases[0])
                done += 1
        return done

    def compact() -> int:
        times = 0
        for _ in range(40):
            db.rows("select setval('pipeline.compact_after', 1)")
            times += bool(compactor.value(COMPACT))
        return times

    *done, times = at_once(*(lambda one=one, n=n: work(one, n) for n, one in enumerate(eight)), compact)
    assert not [answer for answer in [*done, times] if isinstance(answer, Exception)], (done, times)
    assert times > 0
    drain(eight[0], db)
    assert db.value("select count(*) from pipeline.execution where state <> 'finished'") == 0
    assert db.value("select count(*) from pipeline.task") == 0
