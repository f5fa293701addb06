"""What settles, ends and re-runs an execution, at the same moment."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost, NotFound, PgPipelineError, WrongState
from pg_pipeline_tests.coordination.conftest import files, state
from pg_pipeline_tests.races.sessions import Session, at_once, callbacks, dead_letter, drain, places

Open = Callable[[], Session]
ROUNDS = 8
CANCEL = "select pipeline.cancel(%s, 'test')"


@pytest.fixture
def eight(session: Open) -> list[Session]:
    return [session().register() for _ in range(8)]


@pytest.fixture
def sink(db: Database) -> Callable[[str], int]:
    """A table of the user's; gives how many rows of an execution it shows."""
    with db.connect() as conn:
        conn.execute("create table public.sink (execution text, batch int)")
    return lambda execution: db.value("select count(*) from public.sink where execution = %s", (execution,))


def test_lesson_c8_batches_that_settle_at_the_same_moment_fire_one_callback(
    db: Database, submit: Any, eight: list[Session]
) -> None:
    for number in range(ROUNDS):
        execution = submit(16, key=f"k{number}")
        leases = [one.claim()[0] for one in eight]
        answers = at_once(*(lambda one=one, x=x: one.finish(x) for one, x in zip(eight, leases, strict=True)))
        assert [answer[0]["outcome"] for answer in answers] == ["committed"] * 8, answers
        assert [answer[0]["callback"] for answer in answers].count(True) == 1
        assert callbacks(db, execution) == 1
        assert drain(eight[0], db) == 1
        assert state(db, execution)["status"] == "finished"


def test_p4_deaths_and_finishes_that_settle_a_partial_execution_together_fire_one_callback(
    db: Database, submit: Any, eight: list[Session]
) -> None:
    submission.register_pipeline(db, "orders", batch_files=2, policy="partial")
    for number in range(ROUNDS):
        execution = submit(16, key=f"k{number}")
        leases = [one.claim()[0] for one in eight]
        answers = at_once(
            *(
                lambda one=one, x=x, dies=i % 2: one.fail(x, retryable=False) if dies else one.finish(x)
                for i, (one, x) in enumerate(zip(eight, leases, strict=True))
            )
        )
        assert not any(isinstance(answer, Exception) for answer in answers), answers
        assert callbacks(db, execution) == 1
        assert drain(eight[0], db) == 1
        assert places(db, execution) == {"committed": 8, "dead_lettered": 8}


def test_p4_a_discard_and_the_last_finish_fire_one_callback(db: Database, submit: Any, session: Open) -> None:
    one, person = session().register(), session()
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        letter = dead_letter(db, one)
        (lease,) = one.claim()
        answers = at_once(
            lambda x=lease: one.finish(x),
            lambda n=letter: person.value("select pipeline.discard(%s, 'test')", (n,)),
        )
        assert not any(isinstance(answer, Exception) for answer in answers), answers
        assert callbacks(db, execution) == 1
        assert drain(one, db) == 1
        assert places(db, execution) == {"committed": 2, "discarded": 2}


def test_p4_eight_workers_settle_the_same_executions_in_any_order(db: Database, eight: list[Session]) -> None:
    """Each finish settles batches of several executions: locked by id, they don't deadlock."""
    made = [submission.submit(db, "orders", files(16, f"x{n}"), request_key=f"x{n}").execution for n in range(5)]
    for one in eight:
        one.rows("update pipeline.task set ready_at = ready_at - random() * interval '1 hour'")
    leases = [one.claim(5) for one in eight]
    answers = at_once(*(lambda one=one, x=x: one.finish(*x[::-1]) for one, x in zip(eight, leases, strict=True)))
    assert not any(isinstance(answer, Exception) for answer in answers), answers
    assert [callbacks(db, execution) for execution in made] == [1] * 5
    assert drain(eight[0], db) == 5


def test_cancel_waits_for_a_finish_and_keeps_what_it_committed(db: Database, submit: Any, session: Open) -> None:
    execution = submit(4)
    one, person = session().register(), session()
    (lease,) = one.claim()
    one.begin()
    one.finish(lease)
    cancel = person.start(person.value, CANCEL, (execution,))
    person.seen_waiting(cancel)
    one.commit()
    assert cancel.result(10)["state"] == "cancelled"
    assert places(db, execution) == {"committed": 2, "released": 2}


def test_a_finish_that_waited_for_a_cancel_shows_nothing(
    db: Database, submit: Any, session: Open, worker: Callable[..., Worker], sink: Callable[[str], int]
) -> None:
    execution = submit(4)
    person, finisher = session(), session()
    one = worker()
    (lease,) = one.claim()
    person.begin()
    person.value(CANCEL, (execution,))
    finisher.id = one.id
    finisher.begin()
    finisher.rows("insert into public.sink values (%s, %s)", (execution, lease.batch))
    finish = finisher.start(finisher.finish, {"task_id": lease.task_id, "token": lease.token})
    finisher.seen_waiting(finish)
    person.commit()
    with pytest.raises(LeaseLost):
        finish.result(10)
    finisher.rollback()
    assert sink(execution) == 0
    assert places(db, execution) == {"released": 4}


def test_cancel_against_finish_is_one_or_the_other_and_never_half(
    db: Database, submit: Any, worker: Callable[..., Worker], sink: Callable[[str], int]
) -> None:
    one = worker()
    for number in range(ROUNDS):
        execution = submit(2, key=f"k{number}")
        (lease,) = one.claim()

        def publish(conn: Any, x: Any = lease) -> None:
            conn.execute("insert into public.sink values (%s, %s)", (x.execution, x.batch))

        finished, cancelled = at_once(
            lambda x=lease, p=publish: one.finish(x, {"rows_in": 1}, p),
            lambda x=execution: executions.cancel(db, x, "test"),
        )
        assert not isinstance(cancelled, Exception), cancelled
        if isinstance(finished, LeaseLost):
            assert (sink(execution), places(db, execution)) == (0, {"released": 2})
        else:
            assert not isinstance(finished, Exception), finished
            assert (sink(execution), places(db, execution)) == (1, {"committed": 2})
        assert one.claim() == []


def test_p5_cancel_against_the_callback_ends_the_execution_once(db: Database, submit: Any, session: Open) -> None:
    one, person = session().register(), session()
    for number in range(ROUNDS):
        execution = submit(2, key=f"k{number}")
        one.finish(*one.claim())
        (callback,) = one.claim()
        finished, cancelled = at_once(
            lambda x=callback: one.finish(x, result={"summary": 1, "outbox": [{"event": "bill"}]}),
            lambda x=execution: person.value(CANCEL, (x,)),
        )
        told = {
            row["event"] for row in db.rows("select event from pipeline.outbox where key like %s", (f"{execution}:%",))
        }
        if isinstance(cancelled, WrongState):
            assert told == {"finished", "bill"}
        else:
            assert isinstance(finished, LeaseLost), finished
            assert told == {"cancelled"}
        db.rows("select pipeline.release(%s, %s)", (callback["task_id"], callback["token"]))


def test_two_cancels_tell_the_world_once(db: Database, submit: Any) -> None:
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        answers = at_once(*(lambda x=execution: executions.cancel(db, x, "test") for _ in range(4)))
        assert sorted(type(answer).__name__ for answer in answers) == ["WrongState"] * 3 + ["dict"]
        assert db.value("select count(*) from pipeline.outbox where key like %s", (f"{execution}:%",)) == 1


def test_cancel_against_replay(db: Database, submit: Any, session: Open) -> None:
    one, person = session().register(), session()
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        letter = dead_letter(db, one)
        replayed, cancelled = at_once(
            lambda n=letter: one.value("select pipeline.replay(%s)", (n,)),
            lambda x=execution: person.value(CANCEL, (x,)),
        )
        assert not isinstance(cancelled, Exception), cancelled
        assert isinstance(replayed, WrongState) or replayed["resolution"] == "replayed", replayed
        assert places(db, execution) == {"released": 4}
        assert one.claim(10) == []


def test_p5_a_deadline_against_the_last_finish(db: Database, submit: Any, session: Open) -> None:
    one, reaper = session().register(), session()
    for number in range(ROUNDS):
        execution = submit(2, key=f"k{number}")
        (lease,) = one.claim()
        db.rows("update pipeline.execution set deadline = now() where key = %s returning 1", (execution,))
        finished, expired = at_once(lambda x=lease: one.finish(x), lambda: reaper.value("select pipeline.reap()"))
        assert not isinstance(expired, Exception), expired
        reaper.value("select pipeline.reap()")  # skipped what the finish held: the next pass takes it
        assert state(db, execution)["status"] == "expired"
        committed = not isinstance(finished, LeaseLost)
        assert places(db, execution) == ({"committed": 2} if committed else {"released": 2}), finished
        drain(one, db)


def test_an_abort_against_a_neighbours_finish(db: Database, submit: Any, session: Open) -> None:
    submission.register_pipeline(db, "orders", batch_files=2, policy="abort")
    one, two = session().register(), session().register()
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        (good,), (bad,) = one.claim(), two.claim()
        finished, failed = at_once(lambda x=good: one.finish(x), lambda x=bad: two.fail(x, retryable=False))
        assert not isinstance(failed, Exception), failed
        assert state(db, execution)["status"] == "aborted"
        if isinstance(finished, LeaseLost):
            assert places(db, execution) == {"released": 4}
            db.rows("select pipeline.release(%s, %s)", (good["task_id"], good["token"]))
        else:
            assert places(db, execution) == {"committed": 2, "released": 2}


def test_rerun_against_replay(db: Database, submit: Any, session: Open) -> None:
    """A letter of the generation before is superseded or refused, never replayed into the new one."""
    submission.register_pipeline(db, "orders", batch_files=2, policy="partial")
    one, person = session().register(), session()
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        letter = dead_letter(db, one)
        drain(one, db)
        assert state(db, execution)["status"] == "finished"
        replayed, rerun = at_once(
            lambda n=letter: one.value("select pipeline.replay(%s)", (n,)),
            lambda x=execution: person.value("select pipeline.rerun(%s)", (x,)),
        )
        assert isinstance(replayed, WrongState | NotFound), replayed
        assert rerun["generation"] == 2
        assert db.value("select resolution from pipeline.dead_letter where id = %s", (letter,)) == "superseded"
        drain(one, db)
        assert places(db, execution) == {"committed": 4}


def test_rerun_that_meets_a_replay_waits_for_its_letter(db: Database, submit: Any, session: Open) -> None:
    """One lock order: with the execution first, the two would wait for each other."""
    submission.register_pipeline(db, "orders", batch_files=2, policy="partial")
    one, person = session().register(), session()
    execution = submit(4)
    letter = dead_letter(db, one)
    drain(one, db)
    one.begin()
    one.rows("select id from pipeline.dead_letter where id = %s for update", (letter,))
    rerun = person.start(person.value, "select pipeline.rerun(%s)", (execution,))
    person.seen_waiting(rerun)
    with pytest.raises(WrongState):
        one.value("select pipeline.replay(%s)", (letter,))
    one.rollback()
    assert rerun.result(10)["generation"] == 2
    drain(one, db)


def test_two_reruns_make_one_generation(db: Database, submit: Any, session: Open) -> None:
    one = session().register()
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        drain(one, db)
        answers = at_once(*(lambda x=execution: executions.rerun(db, x) for _ in range(4)))
        assert sorted(type(answer).__name__ for answer in answers) == ["WrongState"] * 3 + ["dict"], answers
        drain(one, db)
        assert state(db, execution)["generation"] == 2


def test_p7_four_reruns_with_one_request_id_get_one_answer(db: Database, submit: Any, session: Open) -> None:
    one = session().register()
    for number in range(ROUNDS):
        execution = submit(4, key=f"k{number}")
        drain(one, db)
        asked = uuid4()
        answers = at_once(*(lambda x=execution, r=asked: executions.rerun(db, x, request_id=r) for _ in range(4)))
        assert answers == [{"execution": execution, "generation": 2, "batches": 2}] * 4
        drain(one, db)


def test_p3_a_batch_of_the_generation_before_can_not_finish_into_the_next(
    db: Database, submit: Any, session: Open
) -> None:
    """Cancelled while leased, re-run, and only then the old lease comes back."""
    one, person = session().register(), session()
    execution = submit(2)
    drain(one, db)
    person.value("select pipeline.rerun(%s)", (execution,))
    (old,) = one.claim()
    person.value(CANCEL, (execution,))
    person.value("select pipeline.rerun(%s)", (execution,))
    with pytest.raises(PgPipelineError):
        one.finish(old)
    drain(session().register(), db)
    rows = db.rows("select generation, outcome from pipeline.attempt where kind = 'batch' order by generation")
    assert [row["generation"] for row in rows if row["outcome"] == "committed"] == [1, 3]


def test_p4_a_rerun_does_not_count_batches_that_a_cancelled_one_released(
    db: Database, submit: Any, session: Open
) -> None:
    submission.register_pipeline(db, "orders", batch_files=2, policy="partial")
    one = session().register()
    execution = submit(4)
    dead_letter(db, one)
    drain(one, db)
    executions.rerun(db, execution)
    executions.cancel(db, execution, "test")
    assert places(db, execution) == {"committed": 2, "released": 2}
    assert executions.rerun(db, execution)["batches"] == 1
    assert state(db, execution)["remaining"] == 1
    drain(one, db)
    assert state(db, execution)["status"] == "finished"


def test_p10_a_rerun_of_nothing_is_refused(db: Database, submit: Any, session: Open) -> None:
    """Its barrier would be at zero with nobody left to see that."""
    submission.register_pipeline(db, "orders", batch_files=2, policy="partial")
    one = session().register()
    execution = submit(2)
    dead_letter(db, one)
    drain(one, db)
    executions.rerun(db, execution)
    executions.cancel(db, execution, "test")
    with pytest.raises(WrongState, match="no batches to re-run"):
        executions.rerun(db, execution)


def test_batches_reported_in_opposite_order_don_t_deadlock(db: Database, submit: Any, session: Open) -> None:
    one, two = session().register(), session()
    execution = submit(400)
    drain(one, db)
    number = db.value("select id from pipeline.execution where key = %s", (execution,))
    report = "select pipeline.mark_reported(%s, %s, %s)"
    for generation in range(1, ROUNDS // 2):
        batches = list(range(200))
        answers = at_once(
            lambda b=batches, g=generation: one.rows(report, ([number] * 200, b, [g] * 200)),
            lambda b=batches, g=generation: two.rows(report, ([number] * 200, b[::-1], [g] * 200)),
            lambda: executions.rerun(db, execution),
        )
        assert not any(isinstance(answer, Exception) for answer in answers), answers
        drain(one, db)
