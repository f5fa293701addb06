"""The worker and its heartbeat, with real threads and sessions (P3, P9, P10; lessons C2 to C4)."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Connection, Database
from pg_pipeline.coordination.lease import Lease
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost
from pg_pipeline_tests.coordination.conftest import HandWorker
from pg_pipeline_tests.helpers import wait_until

MakeWorker = Callable[..., Worker]
Hand = Callable[..., HandWorker]


def beats(db: Database, worker: Worker) -> Any:
    return db.value("select beat_at from pipeline.worker where id = %s", (worker.id,))


def test_a_lost_lease_is_reported_to_the_process_at_once(
    db: Database, submit: Any, worker: MakeWorker, hand: Hand
) -> None:
    submit(2)
    lost: list[tuple[Lease, str]] = []
    one = worker(heartbeat_interval=0.05, on_lost=lambda lease, why: lost.append((lease, why)))
    (lease,) = one.claim()
    db.rows("update pipeline.task set run_deadline = now() - interval '1 s' returning 1")
    hand().claim()
    wait_until(lambda: lost, what="the lost lease to be reported")
    assert lost[0][0] == lease
    assert one.held == []


def test_a_cancelled_execution_is_reported_as_lost(db: Database, submit: Any, worker: MakeWorker) -> None:
    execution = submit(2)
    lost: list[str] = []
    one = worker(heartbeat_interval=0.05, on_lost=lambda _, why: lost.append(why))
    (lease,) = one.claim()
    executions.cancel(db, execution, "stop")
    wait_until(lambda: lost, what="the cancelled lease to be reported")
    assert lost == ["its execution ended"]
    one.release(lease)
    assert db.value("select count(*) from pipeline.task") == 0


def test_a_lease_that_the_process_does_not_know_is_handed_back(db: Database, submit: Any, worker: MakeWorker) -> None:
    submit(2)
    one = worker(heartbeat_interval=0.05)
    # As if the claim's answer had been lost and never asked for again.
    db.rows("select * from pipeline.claim(%s, %s, 1)", (one.id, uuid4()))
    wait_until(lambda: db.value("select token is null from pipeline.task"), what="the lease to be handed back")
    (lease,) = one.claim()
    assert lease.attempt == 1


def test_a_claim_whose_answer_is_under_way_is_left_alone(db: Database, submit: Any, hand: Hand) -> None:
    submit(2)
    one = hand()
    claim = uuid4()
    one.claim(claim_id=claim)
    assert one.beat(pending=[claim])["released"] == 0
    assert one.beat()["released"] == 1


def test_a_finish_that_takes_long_does_not_stall_the_heartbeat(db: Database, submit: Any, worker: MakeWorker) -> None:
    submit(2)
    one = worker(heartbeat_interval=0.05)
    (lease,) = one.claim()

    def publish(conn: Connection) -> None:
        for _ in range(3):
            before = beats(db, one)
            wait_until(lambda seen=before: beats(db, one) > seen, what="a beat during the finish")

    one.finish(lease, {}, publish)


@pytest.mark.own_session
@pytest.mark.parametrize("times", [1, 3])
def test_the_heartbeat_survives_a_reaped_connection_and_keeps_its_leases(
    db: Database, submit: Any, worker: MakeWorker, hand: Hand, times: int
) -> None:
    submit(2)
    one = worker(heartbeat_interval=0.1)
    (lease,) = one.claim()
    for _ in range(times):
        killed = db.value(
            "select array_agg(pid) filter (where pg_terminate_backend(pid)) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
        assert killed
        # A beat that was under way may still commit: what counts comes after the session has gone.
        gone = ("select not exists (select from pg_stat_activity where pid = any (%s))", (killed,))
        wait_until(lambda gone=gone: db.value(*gone), what="the sessions to end")
        before = beats(db, one)
        wait_until(lambda seen=before: beats(db, one) > seen, what="a beat on a new connection")
    assert hand().claim() == []
    one.finish(lease)


@pytest.mark.own_session
def test_a_worker_that_lost_its_session_is_gone_after_the_grace_not_the_lease(
    db: Database, dsn: str, submit: Any, hand: Hand
) -> None:
    submission.configure_queue(db, "default", lease="1 hour", grace="200 ms")
    submit(2)
    with psycopg.connect(dsn, autocommit=True) as session:
        dead = uuid4()
        session.execute("select pipeline.register_worker(%s, 'default', 'direct')", (dead,))
        session.execute("select * from pipeline.claim(%s, %s)", (dead, uuid4()))
        heir = hand()
        db.rows("update pipeline.worker set beat_at = beat_at - interval '1 min' where id = %s returning 1", (dead,))
        db.rows("update pipeline.boot set seen_at = seen_at - interval '1 min' returning 1")
        # Its session lives and holds its lock: a missing beat alone does not end an hour's lease.
        assert heir.claim() == []
    (lease,) = wait_until(heir.claim, what="the dead worker's task")
    assert lease["attempt"] == 2


def test_a_held_lock_never_extends_a_lease(db: Database, dsn: str, submit: Any, hand: Hand) -> None:
    submission.configure_queue(db, "default", lease="1 s")
    submit(2)
    with psycopg.connect(dsn, autocommit=True) as session:
        stopped = uuid4()
        session.execute("select pipeline.register_worker(%s, 'default', 'stopped')", (stopped,))
        session.execute("select * from pipeline.claim(%s, %s)", (stopped, uuid4()))
        db.rows("update pipeline.worker set beat_at = beat_at - interval '1 min' where id = %s returning 1", (stopped,))
        db.rows("update pipeline.boot set seen_at = seen_at - interval '1 min' returning 1")
        (lease,) = wait_until(hand().claim, what="the stopped worker's task")
        assert lease["attempt"] == 2


def test_behind_a_pooler_lease_time_alone_decides(db: Database, submit: Any, hand: Hand) -> None:
    submission.configure_queue(db, "default", lease="1 hour", grace="100 ms")
    submit(2)
    one, heir = hand(), hand()  # registered without a lock, as behind a pooler
    one.claim()
    db.rows("update pipeline.worker set beat_at = beat_at - interval '1 min' returning 1")
    db.rows("update pipeline.boot set seen_at = seen_at - interval '1 min' returning 1")
    assert heir.claim() == []


def test_after_a_crash_of_postgres_expiry_counts_from_the_first_moment_after_it(
    db: Database, submit: Any, hand: Hand
) -> None:
    submit(2)
    one, heir = hand(), hand()
    one.claim()
    db.rows("update pipeline.worker set beat_at = beat_at - interval '1 day' returning 1")
    db.rows("delete from pipeline.boot returning 1")  # what a crash does to an unlogged table
    assert heir.claim() == []
    db.rows("update pipeline.worker set lease = '1 ms' where id = %s returning 1", (one.id,))
    wait_until(heir.claim, what="the task after the lease since the crash")


def test_leaving_a_worker_hands_its_leases_back_uncounted(db: Database, submit: Any) -> None:
    submit(6)
    with Worker(db) as one:
        one.claim(3)
    rows = db.rows("select attempts, token from pipeline.task")
    assert [(row["attempts"], row["token"]) for row in rows] == [(0, None)] * 3


@pytest.mark.own_session
def test_new_work_wakes_a_waiting_worker(db: Database, submit: Any, worker: MakeWorker) -> None:
    one = worker(heartbeat_interval=30)  # no beat comes round within this test: only the wake-up can
    assert one.claim() == []
    submission.configure_queue(db, "other")
    submission.register_pipeline(db, "others", queue="other")
    submit(2, key="not ours", pipeline="others")
    submit(2)
    assert one.wait(timeout=25)
    assert [lease.batch for lease in one.claim()] == [0]


def test_a_beat_wakes_a_waiting_worker_for_what_no_notification_tells(
    db: Database, submit: Any, worker: MakeWorker, hand: Hand
) -> None:
    """A worker that is gone, a retry that is due: an idle worker need not ask for them again and again."""
    submit(2)
    dying, one = hand(), worker(heartbeat_interval=0.05)
    dying.claim()
    while one.wait(timeout=0.2):  # the submission's own notification, and beats that saw it
        pass
    dying.die()
    assert one.wait(timeout=25)
    assert [lease.batch for lease in one.claim()] == [0]


def test_an_idle_worker_is_not_woken_for_nothing(db: Database, submit: Any, worker: MakeWorker) -> None:
    submission.configure_queue(db, "other")
    submission.register_pipeline(db, "others", queue="other")
    submit(2, key="not ours", pipeline="others")
    submit(2)
    executions.pause(db, "default", "test")
    one = worker(heartbeat_interval=0.05)
    one.wait(timeout=0.2)
    beats = one.last_beat
    wait_until(lambda: one.last_beat > beats, what="a beat")
    assert not one.wait(timeout=0.2)


def test_lesson_c2_a_finish_on_a_dead_reused_connection_is_asked_again(
    db: Database, submit: Any, worker: MakeWorker
) -> None:
    submit(4)
    one = worker(heartbeat_interval=0.1)
    (lease,) = one.claim()
    with psycopg.connect(db.dsn, autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
    assert one.finish(lease, {"rows_in": 5}).result == {"rows_in": 5}


def test_lesson_c2_only_once_and_only_on_a_reused_connection(db: Database) -> None:
    tries: list[int] = []

    def work(conn: Connection) -> None:
        tries.append(conn.info.backend_pid)
        conn.execute("select pg_terminate_backend(pg_backend_pid())")

    db.value("select 1")
    with pytest.raises(psycopg.OperationalError):
        db.write(work)
    assert len(set(tries)) == len(tries) == 2
    tries.clear()
    with pytest.raises(psycopg.OperationalError):
        db.write(work)  # no idle connection is left: this one is fresh
    assert len(tries) == 1


def test_an_error_that_is_not_the_connections_is_not_retried(db: Database) -> None:
    tries: list[int] = []

    def work(conn: Connection) -> None:
        tries.append(1)
        conn.execute("select 1 / 0")

    db.value("select 1")
    with pytest.raises(Exception, match="division"):
        db.write(work)
    assert tries == [1]


def test_a_batch_lost_while_it_worked_gets_leaselost_from_every_verb(
    db: Database, submit: Any, worker: MakeWorker, hand: Hand
) -> None:
    submit(2)
    one = worker(heartbeat_interval=30)
    (lease,) = one.claim()
    db.rows("update pipeline.task set run_deadline = now() - interval '1 s' returning 1")
    (taken,) = hand().claim()
    before = db.rows("select * from pipeline.task")
    for verb in (one.finish, one.release, lambda x: one.fail(x, "e"), lambda x: one.note_output(x, "s", {})):
        with pytest.raises(LeaseLost):
            verb(lease)
    assert db.rows("select * from pipeline.task") == before
    assert taken["token"] == before[0]["token"]


def test_finish_this_and_claim_the_next_is_one_round_trip(db: Database, submit: Any, worker: MakeWorker) -> None:
    execution = submit(6)
    one = worker()
    (lease,) = one.claim()
    batches = [lease.batch]
    while lease.kind == "batch":
        claim = uuid4()
        finished, (following,) = one.finish_and_claim(lease, {"rows_in": 1}, claim_id=claim)
        assert finished.lease == lease
        again, same = one.finish_and_claim(lease, {"rows_in": 2}, claim_id=claim)
        assert (again.result, same) == ({"rows_in": 1}, [following])
        lease = following
        batches.append(lease.batch)
    assert batches == [0, 1, 2, None]
    assert one.held == [lease]
    _, nothing = one.finish_and_claim(lease, {"summary": {"n": 3}})
    assert nothing == []
    assert executions.get(db, execution)["status"] == "finished"


def test_a_finish_that_is_lost_claims_nothing(db: Database, submit: Any, worker: MakeWorker, hand: Hand) -> None:
    submit(6)
    one = worker(heartbeat_interval=30)
    (lease,) = one.claim()
    db.rows(
        "update pipeline.task set run_deadline = now() - interval '1 s' where id = %s returning 1", (lease.task_id,)
    )
    hand().claim()
    with pytest.raises(LeaseLost):
        one.finish_and_claim(lease, {})
    assert one.held == []
    assert db.value("select count(*) from pipeline.task where token is null") == 2
