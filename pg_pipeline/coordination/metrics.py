"""Numbers for monitoring, all of one moment, and how the workers of a host are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pg_pipeline.coordination.database import Database, made


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def samples(db: Database) -> list[Sample]:
    return [Sample(**row) for row in db.rows("select * from pipeline.metrics()")]


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """A worker that has not stopped; silent for longer than the limit, it is not well."""

    worker: UUID
    name: str
    queue: str
    run_id: str | None
    started_at: datetime
    silent_seconds: float
    limit_seconds: float


def worker_health(db: Database, host: str) -> list[WorkerHealth]:
    return [made(WorkerHealth, row) for row in db.rows("select * from pipeline.worker_health(%s)", (host,))]


def health_limit(db: Database) -> float:
    """Seconds that anything may be silent: more than the longest lease."""
    seconds: float = db.value("select pipeline.health_limit()")
    return seconds
