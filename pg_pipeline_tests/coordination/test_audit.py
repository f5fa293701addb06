"""Audit proves itself: each violation, planted by hand, is found."""

from collections.abc import Callable
from typing import Any

import pytest

from pg_pipeline.coordination import executions
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.coordination.conftest import HandWorker

Hand = Callable[..., HandWorker]

PLANTED = {
    "a file in no execution": ("P1", "update pipeline.file set execution_id = 999 where ordinal = 0 and batch = 1"),
    "a file in no batch": ("P1", "update pipeline.file set batch = 99 where ordinal = 0 and batch = 1"),
    "a lost file": ("P1", "delete from pipeline.file where ordinal = 0 and batch = 1"),
    "a released file of a live batch": ("P1", "update pipeline.file set state = 'released' where batch = 1"),
    "a released batch with waiting files": ("P1", "update pipeline.batch set state = 'released' where number = 1"),
    "a lost task": ("P1", "delete from pipeline.task where batch = 1"),
    "a doubled task": (
        "P1",
        "insert into pipeline.task (lane_id, execution_id, generation, batch, max_attempts, ready_at) "
        "select lane_id, execution_id, generation, batch, 3, now() from pipeline.task where batch = 1",
    ),
    "a task where no claim looks": ("P1", "update pipeline.lane set floor = now() + interval '1 day'"),
    "a lease where no claim looks": ("P1", "update pipeline.worker set floor = now() + interval '1 day'"),
    "a committed batch that still has its task": (
        "P1",
        "update pipeline.batch set state = 'committed', token = gen_random_uuid() where number = 1",
    ),
    "a dead batch without a letter": ("P1", "update pipeline.batch set state = 'dead' where number = 1"),
    "two commits of a batch": (
        "P2",
        "insert into pipeline.attempt select gen_random_uuid(), task_id, queue, kind, execution_id, generation, batch, "
        "number, worker, alone, claimed_at, ended_at, outcome from pipeline.attempt where outcome = 'committed'",
    ),
    "a visible attempt that was lost": ("P2", "update pipeline.attempt set outcome = 'lost' where batch = 0"),
    "a file under another key": ("P2", "update pipeline.file set version = 'x' where batch = 0 and ordinal = 0"),
    "a lease of nobody": ("P3", "delete from pipeline.worker"),
    "a token used twice": (
        "P3",
        "update pipeline.task set token = (select token from pipeline.attempt limit 1) where token is not null",
    ),
    "a barrier that expects too many": ("P4", "update pipeline.execution set expected = expected + 1"),
    "a barrier that counted too many": ("P4", "update pipeline.execution set settled = settled + 1"),
    "a callback made too early": ("P4", "update pipeline.execution set callback_generation = 1"),
    "a callback that never came": (
        "P4",
        "update pipeline.execution set expected = 1; delete from pipeline.batch where state <> 'committed'",
    ),
    "an end that nobody is told of": (
        "P5",
        "update pipeline.execution set state = 'finished', ended_at = now(), callback_generation = 1",
    ),
    "finished with batches remaining": (
        "P4",
        "update pipeline.execution set state = 'finished', ended_at = now()",
    ),
    "committed by nobody": ("P2", "delete from pipeline.attempt where outcome = 'committed'"),
    "a quarantine that the ledger does not know": ("P1", "update pipeline.batch set quarantined = 1 where number = 0"),
    "a letter for a batch that waits": (
        "P1",
        "insert into pipeline.dead_letter (task_id, queue, pipeline, kind, priority, tenant, execution_id, generation, "
        "batch, attempts, max_attempts, reason) select 1, 'default', 'orders', 'batch', 0, '', id, 1, 2, 1, 3, 'error' "
        "from pipeline.execution",
    ),
    "a callback committed twice": (
        "P5",
        "insert into pipeline.attempt (token, task_id, queue, kind, execution_id, generation, number, worker, alone, "
        "claimed_at, outcome) select gen_random_uuid(), 1, 'default', 'callback', id, 1, 1, gen_random_uuid(), false, "
        "now(), 'committed' from pipeline.execution, generate_series(1, 2)",
    ),
}


@pytest.mark.plants_violations
@pytest.mark.parametrize("name", PLANTED)
def test_audit_finds(db: Database, conn: Any, hand: Hand, submit: Any, name: str) -> None:
    execution = submit(8)
    one = hand()
    one.finish(*one.claim(1))
    one.claim(1)
    assert executions.audit(db) == []
    promise, statement = PLANTED[name]
    conn.execute(statement)
    assert promise in {violation.promise for violation in executions.audit(db)}
    found = {violation.promise for violation in executions.audit(db, execution)}
    assert promise in found or name == "a file in no execution"


def test_audit_of_one_execution_says_nothing_of_another(db: Database, conn: Any, submit: Any) -> None:
    broken, whole = submit(2, key="a"), submit(2, key="b")
    conn.execute("update pipeline.execution set expected = 2 where key = %s", (broken,))
    assert executions.audit(db, whole) == []
    assert executions.audit(db, broken) != []
    conn.execute("update pipeline.execution set expected = 1 where key = %s", (broken,))
