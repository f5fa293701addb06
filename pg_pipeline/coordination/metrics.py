"""Numbers for monitoring, all of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pg_pipeline.coordination.database import Database


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def samples(db: Database) -> list[Sample]:
    return [Sample(**row) for row in db.rows("select * from pipeline.metrics()")]
