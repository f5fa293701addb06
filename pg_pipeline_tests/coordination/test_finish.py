"""Finish, fail, release (P2, P3, P6, P7; lessons A1 to A4, A8, C2, C5, C6, D1, D3)."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pg_pipeline.coordination import executions
from pg_pipeline.coordination.database import Connection, Database
from pg_pipeline.coordination.lease import CallbackResult, Finish, Finished
from pg_pipeline.coordination.types import BatchResult, FileOutcome
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import InvalidInput, LeaseLost
from pg_pipeline_tests.coordination.conftest import HandWorker, state

Hand = Callable[..., HandWorker]
MakeWorker = Callable[..., Worker]


def good(ordinal: int, rows: int = 3) -> FileOutcome:
    return FileOutcome(ordinal, "committed", rows, rows, 0)


def bad(ordinal: int, reason: str = "corrupt") -> FileOutcome:
    return FileOutcome(ordinal, "quarantined", 0, 0, 0, reason, "byte 17")


def publish_row(text: str) -> Callable[[Connection], None]:
    def publish(conn: Connection) -> None:
        conn.execute("insert into sink values (%s)", (text,))

    return publish


@pytest.fixture
def sink(conn: psycopg.Connection[Any]) -> Callable[[], list[str]]:
    conn.execute("create table sink (row text)")
    return lambda: [row[0] for row in conn.execute("select row from sink order by row").fetchall()]


def test_p6_result_rows_and_ack_are_one_commit(db: Database, submit: Any, worker: MakeWorker, sink: Any) -> None:
    submit(2)
    one = worker()
    (lease,) = one.claim()
    one.finish(lease, BatchResult([good(0), good(1)], 6, 6, 0), publish_row("a"))
    assert sink() == ["a"]
    assert db.value("select count(*) from pipeline.task where batch = 0") == 0


def test_lesson_a3_asked_again_after_a_lost_answer_the_stored_result_comes_back(
    db: Database, submit: Any, worker: MakeWorker, sink: Any
) -> None:
    submit(4)
    one = worker()
    (lease,) = one.claim()
    one.finish(lease, {"rows_in": 7}, publish_row("a"))
    again = one.finish(lease, {"rows_in": 8}, publish_row("b"))
    assert again.result == {"rows_in": 7}
    assert sink() == ["a"]


def test_p3_a_stale_token_publishes_nothing(
    db: Database, submit: Any, hand: Hand, worker: MakeWorker, sink: Any
) -> None:
    execution = submit(2)
    zombie = worker()
    (lease,) = zombie.claim()
    db.rows("update pipeline.task set run_deadline = now() - interval '1 s' returning 1")
    heir = hand()
    (taken,) = heir.claim()
    with pytest.raises(LeaseLost):
        zombie.finish(lease, {}, publish_row("zombie"))
    assert heir.finish(taken)[0]["outcome"] == "committed"
    with pytest.raises(LeaseLost):
        zombie.fail(lease, "x")
    assert sink() == []
    assert [a["outcome"] for a in executions.attempts(db, execution)] == ["fenced", "committed"]


def test_a_batch_that_can_not_publish_does_not_sink_the_others(
    db: Database, submit: Any, worker: MakeWorker, sink: Any
) -> None:
    submit(6)
    one = worker()
    leases = one.claim(3)

    def broken(conn: Connection) -> None:
        conn.execute("insert into sink values ('half')")
        raise ValueError("the sink refuses")

    outcomes = one.finish_many(
        [
            Finish(leases[0], {}, publish_row("0")),
            Finish(leases[1], {}, broken),
            Finish(leases[2], {}, publish_row("2")),
        ]
    )
    assert [type(o) for o in outcomes] == [Finished, ValueError, Finished]
    assert sink() == ["0", "2"]
    assert [lease.batch for lease in one.held] == [1]
    assert one.fail(leases[1], "the sink refuses").retry_at


def test_a_result_that_is_refused_does_not_sink_the_others(db: Database, submit: Any, worker: MakeWorker) -> None:
    submit(6)
    one = worker()
    leases = one.claim(3)
    results: list[Any] = [{}, BatchResult([good(0)], 3, 3, 0), {}]
    outcomes = one.finish_many([Finish(lease, result) for lease, result in zip(leases, results, strict=True)])
    assert [type(o) for o in outcomes] == [Finished, InvalidInput, Finished]
    assert one.held == [leases[1]]


@pytest.mark.parametrize(
    "bad_result",
    [
        {"rows_in": 10**30},
        {"rows_out": 1.5},
        {"rows_rescued": -1},
        {"rows_in": "many"},
        {"rows_in": [1]},
        {"files": 3},
        {"files": {"rows_in": 3}},
        {"quarantined": {}},
        {"quarantined": [7]},
        {"quarantined": [{"ordinal": 10**12, "reason": "x"}]},
        {"quarantined": [{"ordinal": "0x", "reason": "x"}]},
        [],
    ],
    ids=str,
)
def test_any_value_of_a_result_that_is_refused_is_its_own_batchs_trouble(
    db: Database, submit: Any, worker: MakeWorker, bad_result: Any
) -> None:
    submit(6)
    one = worker()
    leases = one.claim(3)
    outcomes = one.finish_many([Finish(leases[0], {}), Finish(leases[1], bad_result), Finish(leases[2], {})])
    assert [type(o) for o in outcomes] == [Finished, InvalidInput, Finished]
    assert one.held == [leases[1]]
    statement = "select pipeline.finish(%s, %s, %s)"
    with pytest.raises(InvalidInput) as refused:  # also from psql, with the token named
        db.rows(statement, ([leases[1].task_id], [leases[1].token], [Jsonb(bad_result)]))
    cause = refused.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert str(leases[1].token) in (cause.diag.message_detail or "")


@pytest.mark.parametrize("outbox", [{}, None, "x", [1], [{}, "x"]], ids=str)
def test_a_callbacks_outbox_that_is_no_list_of_objects_is_refused(
    db: Database, submit: Any, worker: MakeWorker, outbox: Any
) -> None:
    submit(2)
    one = worker()
    one.finish(*one.claim())
    (lease,) = one.claim()
    with pytest.raises(InvalidInput, match="list of objects"):
        one.finish(lease, {"summary": {}, "outbox": outbox})
    assert one.finish(lease, {"summary": {}, "outbox": []})


def test_a_constraint_that_is_checked_at_the_commit_is_its_own_batchs_trouble(
    db: Database, conn: psycopg.Connection[Any], submit: Any, worker: MakeWorker
) -> None:
    """What is deferred passes every savepoint and would sink the whole group."""
    conn.execute("create table parent (id int primary key)")
    conn.execute("create table child (parent int references parent deferrable initially deferred)")
    conn.execute("insert into parent values (0), (2)")
    submit(6)
    one = worker()
    leases = one.claim(3)

    def child_of(number: int) -> Callable[[Connection], None]:
        return lambda sink: sink.execute("insert into child values (%s)", (number,)) and None

    outcomes = one.finish_many([Finish(lease, {}, child_of(n)) for n, lease in enumerate(leases)])
    assert [type(o) for o in outcomes] == [Finished, psycopg.errors.ForeignKeyViolation, Finished]
    assert conn.execute("select parent from child order by 1").fetchall() == [(0,), (2,)]
    assert one.held == [leases[1]]
    assert one.fail(leases[1], "no parent").retry_at


def test_p4_a_token_that_is_named_twice_in_one_finish_settles_once(db: Database, submit: Any, hand: Hand) -> None:
    execution = submit(4)
    one = hand()
    first, second = one.claim(2)
    assert [row["outcome"] for row in one.finish(first, first)] == ["committed", "committed"]
    assert state(db, execution)["remaining"] == 1
    crossed = [first["task_id"]], [second["token"]], [Jsonb({})]
    assert db.rows("select outcome from pipeline.finish(%s, %s, %s)", crossed) == [{"outcome": "lost"}]
    assert state(db, execution)["remaining"] == 1
    one.finish(second)


def test_a_publish_that_meets_a_lock_timeout_is_that_batchs_own_trouble(
    db: Database, dsn: str, submit: Any, worker: MakeWorker, sink: Any
) -> None:
    submit(4)
    one = worker()
    leases = one.claim(2)

    def stuck(conn: Connection) -> None:
        conn.execute("set local lock_timeout = '10 ms'")
        conn.execute("lock table sink")

    with psycopg.connect(dsn) as holder:
        holder.execute("lock table sink in access share mode")
        outcomes = one.finish_many([Finish(leases[0], {}, stuck), Finish(leases[1], {})])
    assert [type(o) for o in outcomes] == [psycopg.errors.LockNotAvailable, Finished]


def test_a_stale_and_the_current_token_of_one_task_in_one_finish(db: Database, submit: Any, hand: Hand) -> None:
    submit(2)
    old, new = hand(), hand()
    (stale,) = old.claim()
    old.die()
    (current,) = new.claim()
    assert [row["outcome"] for row in new.finish(stale, current)] == ["lost", "committed"]


def test_errors_of_any_text_are_stored(db: Database, submit: Any, worker: MakeWorker) -> None:
    submit(2)
    one = worker()
    (lease,) = one.claim()
    assert one.fail(lease, "half \udce9 and nul \x00 and \\u0000").retry_at
    (lease,) = one.claim()
    bad_name = FileOutcome(1, "quarantined", 0, 0, 0, "corrupt", "/in/caf\udce9\x00")
    one.finish(lease, BatchResult([good(0), bad_name], 3, 3, 0, {"text": "\\u0000 stays"}))
    assert db.value("select result->'metadata'->>'text' from pipeline.batch") == "\\u0000 stays"


def test_c5_a_finish_that_meets_an_ended_execution_rolls_back_what_it_published(
    db: Database, submit: Any, worker: MakeWorker, sink: Any
) -> None:
    cancelled, other = submit(2, key="a"), submit(2, key="b")
    one = worker()
    leases = one.claim(2)

    def publish_then_cancel(conn: Connection) -> None:
        publish_row("cancelled")(conn)
        if state(db, cancelled)["state"] == "sealed":
            executions.cancel(db, cancelled, "changed our minds")

    outcomes = one.finish_many(
        [Finish(x, {}, publish_then_cancel if x.execution == cancelled else publish_row("kept")) for x in leases]
    )
    assert {type(o) for o in outcomes} == {Finished, LeaseLost}
    assert sink() == ["kept"]
    assert state(db, cancelled)["status"] == "cancelled"
    assert state(db, other)["remaining"] == 0


def test_lesson_a8_every_file_of_a_batch_is_accounted_for(db: Database, submit: Any, worker: MakeWorker) -> None:
    execution = submit(2)
    one = worker()
    (lease,) = one.claim()
    with pytest.raises(InvalidInput, match="account for each"):
        one.finish(lease, BatchResult([good(0)], 3, 3, 0))
    with pytest.raises(InvalidInput, match="ordinal"):
        one.finish(lease, BatchResult([good(0), bad(9)], 3, 3, 0))
    assert one.held == [lease]
    one.finish(lease, BatchResult([good(0), bad(1)], 3, 3, 0))
    (file,) = executions.quarantined(db, execution)
    assert (file["ordinal"], file["reason"], file["detail"]) == (1, "corrupt", "byte 17")
    assert state(db, execution)["quarantined"] == 1


def test_lesson_a2_a_failed_task_is_tried_again_and_its_error_kept(
    db: Database, submit: Any, worker: MakeWorker
) -> None:
    execution = submit(2)
    one = worker()
    for attempt in (1, 2):
        (lease,) = one.claim()
        assert lease.attempt == attempt
        assert one.fail(lease, ValueError("bad day")).retry_at
    (lease,) = one.claim()
    letter = one.fail(lease, ValueError("bad day")).dead_letter
    assert letter
    assert one.claim() == []
    history = executions.attempts(db, execution)
    assert [(a["outcome"], a["error_class"], a["error"]) for a in history] == [("failed", "ValueError", "bad day")] * 3


def test_an_error_that_no_retry_mends_is_a_dead_letter_at_once(db: Database, submit: Any, worker: MakeWorker) -> None:
    submit(2)
    one = worker()
    (lease,) = one.claim()
    failed = one.fail(lease, "schema drift", retryable=False, reason="schema_drift")
    assert failed.dead_letter
    assert one._db.value("select pipeline.fail(%s, %s, 'x', 'x')", (lease.task_id, lease.token)) == {
        "outcome": "failed",
        "dead_letter": failed.dead_letter,
    }


def test_backing_off_grows_and_is_capped(db: Database, submit: Any, hand: Hand) -> None:
    from pg_pipeline.coordination import submission

    submission.configure_queue(db, "default", backoff_base="10 s", backoff_cap="30 s", max_attempts=10)
    submit(2)
    one = hand()
    waits = []
    for _ in range(6):
        (lease,) = one.claim()
        one.fail(lease)
        waits.append(db.value("select extract(epoch from ready_at - clock_timestamp())::float8 from pipeline.task"))
        db.rows("update pipeline.task set ready_at = now() returning 1")
    assert 4.5 < waits[0] <= 10
    assert 9 < waits[1] <= 20
    assert all(14 < wait <= 30 for wait in waits[2:])


def test_lesson_c6_a_callback_that_is_redelivered_acts_once(
    db: Database, submit: Any, hand: Hand, worker: MakeWorker
) -> None:
    execution = submit(2)
    zombie = worker()
    zombie.finish(zombie.claim()[0])
    (lease,) = zombie.claim()
    db.rows("update pipeline.task set run_deadline = now() - interval '1 s' returning 1")
    heir = hand()
    (taken,) = heir.claim()
    result = {"summary": {"by": "heir"}, "outbox": [{"event": "bill", "destination": "http://x", "payload": {"n": 1}}]}
    heir.finish(taken, result=result)
    with pytest.raises(LeaseLost):
        zombie.finish(lease, CallbackResult({"by": "zombie"}, [{"event": "bill", "destination": "http://x"}]))
    assert state(db, execution)["summary"] == {"by": "heir"}
    keys = [row["key"] for row in db.rows("select key from pipeline.outbox order by id")]
    assert keys == [f"{execution}:g1:callback:1", f"{execution}:g1:finished"]


def test_a_failing_callback_shows_the_execution_as_blocked_under_every_policy(db: Database, hand: Hand) -> None:
    from pg_pipeline.coordination import submission
    from pg_pipeline_tests.coordination.conftest import files

    for policy in ("strict", "partial", "abort"):
        submission.register_pipeline(db, policy, policy=policy)
        execution = submission.submit(db, policy, files(1), request_key=policy).execution
        one = hand(pipelines=[policy])
        one.finish(*one.claim())
        one.fail(*one.claim(), retryable=False)
        assert state(db, execution)["status"] == "blocked"
        letter = db.value("select max(id) from pipeline.dead_letter")
        db.rows("select pipeline.replay(%s)", (letter,))
        one.finish(*one.claim())
        assert state(db, execution)["status"] == "finished"
