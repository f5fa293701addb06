"""Executions and queues: what a person asks of them and does to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from pg_pipeline.coordination.database import Database, made
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import NotFound


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that the tables don't keep."""

    promise: str
    execution: str | None
    subject: str
    violation: str


@dataclass(frozen=True, slots=True)
class Reason:
    """One line of an explanation."""

    what: str
    detail: str
    next_step: str | None


def audit(db: Database, execution: str | None = None) -> list[Violation]:
    """Every violation of P1 to P5, from the tables alone."""
    return [made(Violation, row) for row in db.rows("select * from pipeline.audit(%s)", (execution,))]


def explain(db: Database, execution: str) -> list[Reason]:
    """What it waits for, who holds it, since when, and what to do."""
    return [made(Reason, row) for row in db.rows("select * from pipeline.explain(%s)", (execution,))]


def listed(
    db: Database, *, pipeline: str | None = None, status: str | None = None, limit: int = 50
) -> list[dict[str, Any]]:
    """The newest executions first."""
    return db.rows("select * from pipeline.executions(%s, %s, %s::int)", (pipeline, status, limit))


def get(db: Database, execution: str) -> dict[str, Any]:
    rows = db.rows("select * from pipeline.execution_status where execution = %s", (execution,))
    if not rows:
        raise NotFound(f"execution {execution} not found: list them with pg-pipeline executions.")
    return rows[0]


def attempts(db: Database, execution: str) -> list[dict[str, Any]]:
    """Every lease there was and is, oldest first."""
    get(db, execution)
    return db.rows(
        "select * from pipeline.attempt_status where execution = %s order by claimed_at, batch", (execution,)
    )


def quarantined(db: Database, execution: str | None = None, *, limit: int = 1000) -> list[dict[str, Any]]:
    return db.rows("select * from pipeline.quarantined_files(%s, %s::int)", (execution, limit))


def cancel(db: Database, execution: str, reason: str, *, request_id: UUID | None = None) -> dict[str, Any]:
    """End it now: its files that were not committed are released, and whoever waits is told."""
    answer: dict[str, Any] = db.value("select pipeline.cancel(%s, %s, %s)", (execution, reason, request_id or uuid4()))
    return answer


def rerun(
    db: Database, execution: str, batches: Sequence[int] | None = None, *, request_id: UUID | None = None
) -> dict[str, Any]:
    """A finished execution, all batches or named ones, as a new generation."""
    answer: dict[str, Any] = db.value(
        "select pipeline.rerun(%s, %s::int[], %s)",
        (execution, None if batches is None else list(batches), request_id or uuid4()),
    )
    return answer


def replace_file(db: Database, execution: str, file: FileVersion) -> int:
    """The mended version of a quarantined file takes the old one's place; gives the batch to re-run."""
    batch: int = db.value(
        "select pipeline.replace_file(%s, %s, %s, %s::bigint, %s)",
        (execution, file.path, file.version, file.size, file.modified_at),
    )
    return batch


def prune_ledger(db: Database, pipeline: str, horizon: datetime, *, limit: int = 100) -> int:
    """Forget ended executions all of whose files are older than `horizon`; such files are refused from then on. A
    step: ask again until none went."""
    # The horizon moves in a transaction of its own, so that whoever submits waits for that and not for the step.
    db.rows("select pipeline.prune_ledger(%s, %s, 0)", (pipeline, horizon))
    count: int = db.value("select pipeline.prune_ledger(%s, %s, %s::int)", (pipeline, horizon, limit))
    return count


def queues(db: Database) -> list[dict[str, Any]]:
    return db.rows("select * from pipeline.queue_status order by queue")


def workers(db: Database) -> list[dict[str, Any]]:
    return db.rows("select * from pipeline.worker_status order by started_at")


def leases(db: Database, limit: int = 100) -> list[dict[str, Any]]:
    return db.rows("select * from pipeline.attempt_status where outcome is null order by claimed_at limit %s", (limit,))


def pause(db: Database, queue: str, reason: str) -> None:
    if not db.value("select pipeline.pause(%s, %s)", (queue, reason)):
        raise NotFound(f"queue {queue} not found: list them with pg-pipeline queue list.")


def resume(db: Database, queue: str) -> None:
    if not db.value("select pipeline.resume(%s)", (queue,)):
        raise NotFound(f"queue {queue} not found: list them with pg-pipeline queue list.")
