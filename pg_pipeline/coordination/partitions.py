"""What Dagster's window asks of the ledger: what to show, what was not told yet, what there is to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pg_pipeline.coordination.database import Database, made
from pg_pipeline.errors import NotFound


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch as it is shown, with the attempt whose rows are visible."""

    execution_id: int
    execution: str
    pipeline: str
    number: int
    generation: int
    state: str
    reported_generation: int
    files: int
    bytes: int
    rows_in: int | None
    rows_out: int | None
    rows_rescued: int | None
    quarantined: int
    token: UUID | None
    committed_at: datetime | None
    metadata: Mapping[str, Any]
    attempts: int | None
    claimed_at: datetime | None
    seconds: float | None
    worker: str | None
    run_id: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch is now. `live` says whether whoever holds it still lives."""

    number: int
    generation: int
    state: str
    holder: str | None
    holder_run: str | None
    since: datetime | None
    live: bool | None
    dead_letter: int | None


@dataclass(frozen=True, slots=True)
class CallbackPlace:
    holder: str | None
    holder_run: str | None
    since: datetime | None
    live: bool | None
    dead_letter: int | None


@dataclass(frozen=True, slots=True)
class Depth:
    """Work that is ready in a queue, and who is there to do it; `runs` are the live workers' runs."""

    batches: int
    callbacks: int
    workers: int
    runs: Sequence[str]
    paused: bool


@dataclass(frozen=True, slots=True)
class RunLife:
    """`live`: True while a worker of it lives, False when one died without a word, None when all said goodbye."""

    live: bool | None
    quiet: timedelta


@dataclass(frozen=True, slots=True)
class WaitingCallback:
    pipeline: str
    execution: str
    generation: int
    attempts: int


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """An execution as its summary is shown."""

    id: int
    execution: str
    pipeline: str
    generation: int
    status: str
    expected: int
    remaining: int
    files: int
    rows_in: int
    rows_out: int
    rows_rescued: int
    quarantined: int
    dead_letters: int
    created_at: datetime
    ended_at: datetime | None
    summary: Any


def batches(db: Database, execution: str, numbers: Sequence[int] | None = None) -> list[BatchReport]:
    rows = db.rows(
        "select * from pipeline.batch_report where execution = %s and (%s::int[] is null or number = any (%s::int[])) "
        "order by number",
        (execution, _list(numbers), _list(numbers)),
    )
    return [made(BatchReport, row) for row in rows]


def unreported(db: Database, pipelines: Sequence[str], limit: int = 500) -> list[BatchReport]:
    """Committed batches that Dagster was not told of, and whose worker can no longer tell."""
    rows = db.rows("select * from pipeline.unreported_batches(%s, %s)", (list(pipelines), limit))
    return [made(BatchReport, row) for row in rows]


def unreported_summaries(db: Database, pipelines: Sequence[str], limit: int = 100) -> list[str]:
    rows = db.rows("select * from pipeline.unreported_summaries(%s, %s)", (list(pipelines), limit))
    return [row["execution"] for row in rows]


def mark_reported(db: Database, reports: Sequence[BatchReport]) -> None:
    """Dagster was told of these."""
    db.rows(
        "select pipeline.mark_reported(%s, %s, %s)",
        ([r.execution_id for r in reports], [r.number for r in reports], [r.generation for r in reports]),
    )


def mark_summary_reported(db: Database, report: ExecutionReport) -> None:
    db.rows("select pipeline.mark_summary_reported(%s, %s)", (report.id, report.generation))


def execution(db: Database, key: str) -> ExecutionReport:
    rows = db.rows(
        "select id, execution, pipeline, generation, status, expected, remaining, files, rows_in, rows_out, "
        "rows_rescued, quarantined, dead_letters, created_at, ended_at, summary "
        "from pipeline.execution_status where execution = %s",
        (key,),
    )
    if not rows:
        raise NotFound(f"execution {key} not found: list them with pg-pipeline executions.")
    row = rows[0]
    for name in ("files", "rows_in", "rows_out", "rows_rescued", "quarantined"):
        row[name] = int(row[name])  # sums of bigint are numeric
    return made(ExecutionReport, row)


def places(db: Database, execution: str, numbers: Sequence[int]) -> list[Place]:
    rows = db.rows("select * from pipeline.batch_places(%s, %s)", (execution, list(numbers)))
    return [made(Place, row) for row in rows]


def callback_place(db: Database, execution: str) -> CallbackPlace:
    return made(CallbackPlace, db.rows("select * from pipeline.callback_holder(%s)", (execution,))[0])


def depth(db: Database, queue: str, pipelines: Sequence[str]) -> Depth:
    return made(Depth, db.rows("select * from pipeline.depth(%s, %s)", (queue, list(pipelines)))[0])


def waiting_callbacks(db: Database, pipelines: Sequence[str]) -> list[WaitingCallback]:
    rows = db.rows("select * from pipeline.waiting_callbacks(%s)", (list(pipelines),))
    return [made(WaitingCallback, row) for row in rows]


def run_lives(db: Database) -> dict[str, RunLife]:
    """Of every run that has or had workers, by its id."""
    return {row["run_id"]: RunLife(row["live"], row["quiet"]) for row in db.rows("select * from pipeline.run_lives()")}


def known_requests(db: Database, pipeline: str, keys: Sequence[str]) -> set[str]:
    rows = db.rows("select * from pipeline.known_requests(%s, %s)", (pipeline, list(keys)))
    return {row["request_key"] for row in rows}


def ended_before(db: Database, executions: Sequence[str], age: timedelta) -> set[str]:
    """Of these executions, those that ended longer ago, or are gone from the ledger."""
    rows = db.rows("select * from pipeline.ended_before(%s, %s)", (list(executions), age))
    return {row["execution"] for row in rows}


def dead_letter_news(db: Database, pipelines: Sequence[str], after: int) -> list[dict[str, Any]]:
    return db.rows("select * from pipeline.dead_letter_news(%s, %s)", (list(pipelines), after))


def quarantine_news(db: Database, pipelines: Sequence[str], after: datetime) -> list[BatchReport]:
    """Batches that set files aside after this moment, oldest first."""
    rows = db.rows("select * from pipeline.quarantine_news(%s, %s)", (list(pipelines), after))
    return [made(BatchReport, row) for row in rows]


def unbalanced(db: Database, execution: str) -> list[dict[str, Any]]:
    """Committed batches whose files' row counts are not the batch's."""
    return db.rows("select * from pipeline.unbalanced_batches(%s)", (execution,))


def _list(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else list(values)
