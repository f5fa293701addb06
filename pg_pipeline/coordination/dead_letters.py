"""Dead letters: look, replay, discard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import NotFound


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay of many did."""

    replayed: Sequence[int]
    refused: Sequence[Mapping[str, Any]]


def listed(
    db: Database,
    *,
    queue: str | None = None,
    pipeline: str | None = None,
    execution: str | None = None,
    limit: int = 100,
) -> list[dict[str, Any]]:
    """The letters that wait, oldest first."""
    return db.rows("select * from pipeline.dead_letters(%s, %s, %s, %s::int)", (queue, pipeline, execution, limit))


def show(db: Database, letter: int) -> dict[str, Any]:
    """The whole letter and its task's history."""
    answer: dict[str, Any] | None = db.value("select pipeline.show_dead_letter(%s::bigint)", (letter,))
    if answer is None:
        raise NotFound(f"dead letter {letter} not found: list them with pg-pipeline dlq list.")
    return answer


def replay(db: Database, letter: int, *, by: str | None = None, request_id: UUID | None = None) -> dict[str, Any]:
    """Put it back with more attempts; of two at once one wins, the other gets NotFound."""
    answer: dict[str, Any] = db.value(
        "select pipeline.replay(%s::bigint, coalesce(%s, session_user::text), %s)", (letter, by, request_id or uuid4())
    )
    return answer


def replay_many(
    db: Database,
    *,
    queue: str | None = None,
    pipeline: str | None = None,
    execution: str | None = None,
    reason: str | None = None,
    limit: int = 1000,
) -> Replayed:
    """Replay what matches, leaving out what others hold and what can't come back."""
    answer = db.value(
        "select pipeline.replay_many(%s, %s, %s, %s, %s::int)", (queue, pipeline, execution, reason, limit)
    )
    return Replayed(answer["replayed"], answer["refused"])


def discard(
    db: Database, letter: int, why: str, *, by: str | None = None, request_id: UUID | None = None
) -> dict[str, Any]:
    """Settle it for good; the reason is all that will explain it."""
    answer: dict[str, Any] = db.value(
        "select pipeline.discard(%s::bigint, %s, coalesce(%s, session_user::text), %s)",
        (letter, why, by, request_id or uuid4()),
    )
    return answer
