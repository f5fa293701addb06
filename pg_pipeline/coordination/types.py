"""What the rooms hand to each other: plain values, no database, no Spark, no Dagster."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

# Mapping and Sequence, not dict and list: a value that is only read may be any of them.
JSON: TypeAlias = "str | int | float | bool | Mapping[str, JSON] | Sequence[JSON] | None"


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as it is submitted."""

    path: str
    version: str
    size: int
    modified_at: datetime | None = None  # unknown: never too old, and never pruned


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file of a batch, as the ledger has it."""

    ordinal: int
    path: str
    version: str
    size: int


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """One attempt at one batch; `execution` is its key, such as `20261118-a1b2`."""

    pipeline: str
    execution: str
    generation: int
    batch: int
    token: UUID

    @property
    def mark(self) -> str:
        """The attempt's own, for names that others see: tables and folders. The token can't be had from it."""
        return hashlib.sha256(self.token.bytes).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """How one file of a batch ended."""

    ordinal: int
    state: Literal["committed", "quarantined"]
    rows_in: int
    rows_out: int
    rows_rescued: int
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What an attempt reports when it finishes; one outcome per file of the batch."""

    files: Sequence[FileOutcome]
    rows_in: int
    rows_out: int
    rows_rescued: int
    metadata: Mapping[str, JSON] = field(default_factory=dict)
