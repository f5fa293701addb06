"""A lease and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from pg_pipeline.coordination.types import JSON, AttemptRef, BatchResult

Publish = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to a task; the token is good until another claim."""

    task_id: int
    token: UUID
    kind: str
    pipeline: str
    tenant: str
    priority: int
    execution_id: int | None
    execution: str | None
    generation: int | None
    batch: int | None
    attempt: int
    alone: bool
    claimed_at: datetime
    run_deadline: datetime
    payload: Any = None

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Lease:
        """A lease as it comes inside a json answer."""
        times = {name: datetime.fromisoformat(row[name]) for name in ("claimed_at", "run_deadline")}
        return cls(**{**row, **times, "token": UUID(row["token"])})

    @property
    def ref(self) -> AttemptRef:
        assert self.execution is not None
        return AttemptRef(self.pipeline, self.execution, self.generation or 1, self.batch or 0, self.token)

    def __str__(self) -> str:
        if self.kind == "batch":
            return f"batch {self.batch} of execution {self.execution}"
        return f"{self.kind} of execution {self.execution}" if self.execution else f"{self.kind} task {self.task_id}"


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """What a callback's commit records: the summary, and effects for the outbox."""

    summary: JSON = None
    outbox: Sequence[Mapping[str, JSON]] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """One lease to settle; `publish` runs inside the finish transaction, on its connection."""

    lease: Lease
    result: BatchResult | CallbackResult | Mapping[str, JSON] | None = None
    publish: Publish | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The stored outcome of a finish."""

    lease: Lease
    result: Any
    callback_created: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The stored outcome of a fail: tried again later, or a dead letter."""

    retry_at: str | None = None
    dead_letter: int | None = None


@dataclass(slots=True)
class Lost:
    """Why a lease is no longer ours."""

    lease: Lease
    why: str = field(default="lost")


def result_json(result: BatchResult | CallbackResult | Mapping[str, JSON] | None) -> Any:
    """A result in the words of `pipeline.finish`."""
    if isinstance(result, BatchResult):
        files = sorted(result.files, key=lambda outcome: outcome.ordinal)
        return {
            "rows_in": result.rows_in,
            "rows_out": result.rows_out,
            "rows_rescued": result.rows_rescued,
            "files": {
                "rows_in": [f.rows_in for f in files],
                "rows_out": [f.rows_out for f in files],
                "rows_rescued": [f.rows_rescued for f in files],
            },
            "quarantined": [
                {"ordinal": f.ordinal, "reason": f.reason or "unknown", "detail": f.detail}
                for f in files
                if f.state == "quarantined"
            ],
            "metadata": result.metadata,
        }
    if isinstance(result, CallbackResult):
        return {"summary": result.summary, "outbox": list(result.outbox)}
    return {} if result is None else result
