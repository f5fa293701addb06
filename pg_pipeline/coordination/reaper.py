"""Housekeeping. Nothing depends on it for progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from pg_pipeline.coordination import failpoints
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import AttemptRef

_log = logging.getLogger("pg_pipeline.reaper")

# Discards what an ended attempt wrote: (sink, attempt, location). Idempotent.
Discard = Callable[[str, AttemptRef, Any], None]


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a pass did; empty while another process leads."""

    counts: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def reap(
    db: Database, discard: Discard | None = None, *, pipelines: Collection[str] | None = None, limit: int = 1000
) -> Reaped:
    """One small step over every chore. `discard` is given outputs whose attempt has ended without a commit, of the
    `pipelines` whose sinks it knows; those of others wait for whoever does."""
    counts: dict[str, int] | None = db.value("select pipeline.reap(%s)", (limit,))
    if counts is None:
        return Reaped()
    if discard is not None:
        counts["outputs_discarded"] = _discard_orphans(db, discard, pipelines)
    return Reaped(counts)


def _discard_orphans(db: Database, discard: Discard, pipelines: Collection[str] | None) -> int:
    done = 0
    known = None if pipelines is None else sorted(pipelines)
    for row in db.rows("select * from pipeline.orphaned_outputs(100, %s)", (known,)):
        attempt = AttemptRef(row["pipeline"], row["execution"], row["generation"], row["batch"], row["token"])
        try:
            discard(row["sink"], attempt, row["location"])
        except Exception:  # noqa: BLE001 - a sink's own trouble must not keep the others' outputs
            _log.exception("discarding the output of %s failed; the next pass tries again", attempt)
            continue
        failpoints.hit("reaper.after_discard")
        db.rows("select pipeline.forget_output(%s, %s)", (row["token"], row["sink"]))
        done += 1
    return done
