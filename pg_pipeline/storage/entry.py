"""A file as a listing shows it."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pg_pipeline.coordination.types import FileVersion

GROWING_SECONDS = 2.0  # a file that changed this short ago may not be whole
PATH_BYTES = 4096  # as the ledger has it


@dataclass(frozen=True, slots=True)
class Entry:
    """`etag` where the store has one: it is the version then, and otherwise size and modification time are."""

    path: str
    size: int
    mtime_ns: int | None
    etag: str | None = None

    @property
    def version(self) -> str:
        return self.etag or self.stamp

    @property
    def stamp(self) -> str:
        return f"{self.size}-{self.mtime_ns or 0}"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def changed(self) -> float:
        return (self.mtime_ns or 0) / 1e9

    @property
    def growing(self) -> bool:
        """Stores with etags show whole objects only."""
        now = time.time()
        return self.etag is None and now - GROWING_SECONDS < self.changed <= now + GROWING_SECONDS

    @property
    def mark(self) -> bytes:
        """Path and version, for the key of a request: as it always was where there is no etag."""
        version = self.etag if self.etag is not None else self.mtime_ns
        return f"{self.path}\0{self.size}\0{version}\0".encode("utf-8", "surrogateescape")

    @property
    def file(self) -> FileVersion:
        """As it is submitted."""
        modified_at = None
        if self.mtime_ns is not None:
            with suppress(ValueError, OverflowError):  # whoever lands files also sets their times
                modified_at = datetime.fromtimestamp(self.changed, UTC)
        return FileVersion(as_text(self.path), self.version, self.size, modified_at)


def as_text(path: str) -> str:
    """A name that is not UTF-8 as the ledger can hold it. No file is there: it is set aside as missing, and seen."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if text == path or len(text.encode()) <= PATH_BYTES:
        return text
    return f"{text[: PATH_BYTES // 4]}…{hashlib.sha256(text.encode()).hexdigest()}"
