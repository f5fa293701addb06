"""Cases that happened in real systems and are told nowhere else here. `docs/reliability.md` lists where each one is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination import dead_letters, executions, reaper, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost, PgPipelineError
from pg_pipeline_tests.coordination.conftest import HandWorker, audit, files, state
from pg_pipeline_tests.helpers import PROJECT, ChildProcess, wait_until
from pg_pipeline_tests.lessons import reliability

Hand = Callable[..., HandWorker]
MakeWorker = Callable[..., Worker]


def test_lesson_a4_the_database_refuses_a_second_row_of_anything_that_must_be_one(
    db: Database,
    submit: Any,
    hand: Hand,
) -> None:
    """Asked around our functions, by hand: the keys are at the database's boundary, not in our care."""
    execution = submit(2)
    one = hand()
    one.finish(*one.claim())
    one.finish(*one.claim(), result={"outbox": [{"event": "bill"}]})
    assert state(db, execution)["status"] == "finished"
    doubled = [
        "insert into pipeline.execution (key, pipeline, request_key, fingerprint, state, policy, submission) "
        "select key || 'x', pipeline, request_key, fingerprint, 'open', policy, submission from pipeline.execution",
        "insert into pipeline.file select * from pipeline.file",
        "insert into pipeline.batch select * from pipeline.batch",
        "insert into pipeline.attempt select * from pipeline.attempt",
        "insert into pipeline.outbox (key, execution_id, generation, event, payload) "
        "select key, execution_id, generation, event, payload from pipeline.outbox",
    ]
    for statement in doubled:
        with db.connect() as conn, pytest.raises(psycopg.errors.UniqueViolation):
            conn.execute(statement.encode())


def test_lesson_a6_work_that_nobody_takes_is_still_there_and_said_to_be(db: Database, hand: Hand) -> None:
    """An unknown kind is not acked by whoever meets it; a refused one is kept with its reason."""
    submission.send(db, "default", [{"key": "new", "kind": "of.tomorrow"}, {"key": "off", "kind": "job"}])
    one = hand(kinds=["job"])
    (refused,) = one.claim(10)
    one.fail(refused, retryable=False, error="jobs are switched off")
    assert one.claim(10) == []
    (letter,) = dead_letters.listed(db)
    assert (letter["kind"], letter["error"]) == ("job", "jobs are switched off")
    (waiting,) = db.rows("select key, attempts, token from pipeline.task")
    assert waiting == {"key": "new", "attempts": 0, "token": None}


def test_lesson_b4_the_previous_release_works_on_a_schema_that_has_more(
    db: Database,
    submit: Any,
    worker: MakeWorker,
) -> None:
    """The schema goes first: a new column, a new setting of a claim, a new field of an answer."""
    with db.connect() as conn:
        conn.execute("""
            alter table pipeline.task add column new_column text default 'x';
            alter table pipeline.worker add column new_column text default 'x';
            alter table pipeline.attempt add column new_column text default 'x';
            alter function pipeline.claim rename to old_claim;
            create function pipeline.claim(
              p_worker uuid, p_claim_id uuid, p_limit int default 1, p_after_tenant text default '',
              p_execution text default null, p_kind text default 'batch', p_batches int[] default null,
              p_new boolean default false)
            returns table (task_id bigint, token uuid, kind text, pipeline text, tenant text, priority smallint,
              execution_id bigint, execution text, generation int, batch int, attempt int, alone boolean,
              claimed_at timestamptz, run_deadline timestamptz, payload jsonb, new_answer text)
            language sql as $$
              select *, 'x' from pipeline.old_claim(
                p_worker, p_claim_id, p_limit, p_after_tenant, p_execution, p_kind, p_batches)
            $$;
            alter function pipeline.batch_files rename to old_batch_files;
            create function pipeline.batch_files(p_execution_id bigint, p_batch int)
            returns table (ordinal int, path text, version text, size bigint, new_answer text)
            language sql as $$ select *, 'x' from pipeline.old_batch_files(p_execution_id, p_batch) $$;
            """)
    execution = submit(2)
    one = worker()
    (lease,) = one.claim()
    assert len(one.files(lease)) == 2
    one.finish(lease, {"rows_in": 2, "new_field": 1})
    one.finish(*one.claim())
    assert state(db, execution)["status"] == "finished"


def test_lesson_c4_a_task_that_takes_longer_than_its_lease_is_not_redelivered(
    db: Database,
    submit: Any,
    worker: MakeWorker,
) -> None:
    submission.configure_queue(db, "default", lease="1 s", grace="300 ms")
    submit(2)
    one, other = worker(heartbeat_interval=0.1), worker(heartbeat_interval=0.1)
    (lease,) = one.claim()
    late = "select claimed_at + interval '2500 ms' < clock_timestamp() from pipeline.task where id = %s"

    def long_past_its_lease() -> bool:
        assert other.claim() == []
        return bool(db.value(late, (lease.task_id,)))

    wait_until(long_past_its_lease, what="two and a half lease times")
    assert one.finish(lease).callback_created


def test_lesson_c5_what_retention_forgets_does_not_run_again(
    db: Database,
    submit: Any,
    hand: Hand,
) -> None:
    """The memory of what is done is not collected before the executions that need it, however old it is."""
    running, done = submit(4, key="running"), submit(2, key="done")
    one = hand()
    first, second, other = one.claim(3)
    assert [x["execution"] for x in (first, second, other)] == [running, running, done]
    one.finish(first, other)
    one.finish(*one.claim())
    for table, column in (("attempt", "ended_at"), ("receipt", "created_at")):
        db.rows(f"update pipeline.{table} set {column} = {column} - interval '10 years' returning 1")
    assert reaper.reap(db).counts["attempts"] > 0
    assert one.finish(first)[0]["outcome"] == "committed"  # its execution still runs
    for key, execution in (("running", running), ("done", done)):
        again = submission.submit(db, "orders", files(4 if key == "running" else 2, key), request_key=key)
        assert (again.execution, again.created) == (execution, False)
    assert submission.submit(db, "orders", files(2, "done"), request_key="new").left_out == {"known": 2}
    assert one.finish(other)[0]["outcome"] == "lost"  # forgotten, and so refused
    assert one.claim(10) == []
    one.finish(second)


def test_lesson_d5_a_failure_while_settling_rolls_everything_back_and_is_tried_again(
    db: Database,
    submit: Any,
    worker: MakeWorker,
) -> None:
    execution = submit(2)
    with db.connect() as conn:
        conn.execute("""
            create table public.sink (path text);
            create function public.refuse() returns trigger language plpgsql as $$ begin raise 'no room'; end $$;
            create trigger refuse before update of settled on pipeline.execution execute function public.refuse()
            """)
    one = worker()
    (lease,) = one.claim()

    def publish(conn: psycopg.Connection[Any]) -> None:
        conn.execute("insert into public.sink values ('a')")

    with pytest.raises(psycopg.errors.RaiseException, match="no room"):
        one.finish(lease, {}, publish)
    assert db.value("select count(*) from public.sink") == 0
    assert [reason.what for reason in executions.explain(db, execution)] == ["state", "leased"]
    with db.connect() as conn:
        conn.execute("drop trigger refuse on pipeline.execution")
    assert one.finish(lease, {}, publish).callback_created
    assert db.value("select count(*) from public.sink") == 1


def test_lesson_d6_what_is_left_of_an_execution_that_is_gone_is_listed_by_the_audit(
    db: Database,
    submit: Any,
    request: pytest.FixtureRequest,
) -> None:
    submit(2)
    request.node.add_marker("plants_violations")
    db.rows("delete from pipeline.execution returning 1")
    assert {(row["promise"], row["violation"].partition(" to ")[0]) for row in audit(db)} == {("P1", "belongs")}


def test_lesson_d10_a_test_that_did_not_run_is_a_failure(child: Callable[..., ChildProcess], tmp_path: Path) -> None:
    """A skip that is not asked for turns the run red, and says so."""
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_it(): pytest.skip('no database')\n")
    run = child(
        None, "-q", "-p", "pg_pipeline_tests.not_run", "-c", "/dev/null", str(tmp_path), module="pytest", cwd=tmp_path
    )
    assert run.wait() == pytest.ExitCode.TESTS_FAILED
    assert "NOT RUN" in run.stdout


def test_lesson_a5_no_input_of_a_worker_takes_it_down(db: Database, submit: Any, worker: MakeWorker) -> None:
    """Tokens, batches and results that can't be are typed errors; the worker goes on."""
    submit(4)
    one = worker()
    first, second = one.claim(2)
    for bad in ({"files": {"rows_in": [1]}}, {"quarantined": [{"ordinal": 99, "reason": "x"}]}, ["not an object"]):
        with pytest.raises(PgPipelineError):
            one.finish(first, bad)
    one.finish(first, {})
    with pytest.raises(LeaseLost):
        one.fail(first, "too late")
    assert one.finish(second, {}).callback_created


def test_every_case_has_a_test_and_the_page_says_where() -> None:
    assert [case for case, tests in reliability.tests_by_case().items() if not tests] == []
    for test in [test for _, _, tests in reliability.FAULTS for test in tests]:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (PROJECT / path).read_text(), test
    page = reliability.PAGE.read_text()
    assert page == reliability.text(), "docs/reliability.md is old: python -m pg_pipeline_tests.lessons.reliability"
