"""One way to all files: paths of this machine by the system's own calls, URLs by fsspec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from pg_pipeline.storage import local, remote
from pg_pipeline.storage.entry import Entry
from pg_pipeline.storage.roots import open_regular
from pg_pipeline.storage.urls import is_url, local_path, url_of


@dataclass(frozen=True, slots=True)
class Storage:
    """How URLs are reached. Travels to executors, and so holds the names of secrets, never secrets."""

    options: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, path: str) -> Entry:
        """As it is now, never from a cache; FileNotFoundError when there is none."""
        url = url_of(path)
        if url is not None:
            return remote.entry(url, self.options)
        found = local_path(path)
        assert found is not None
        now = local.entry(found)
        return Entry(path, now.size, now.mtime_ns)

    def find(self, path: str) -> Entry | None:
        """The same; None where there is no file that could be asked for. A store that fails is no answer."""
        try:
            return self.entry(path) if "\0" not in path else None
        except (FileNotFoundError, PermissionError):
            return None
        except OSError:
            if is_url(path):
                raise
            return None

    def open(self, path: str) -> IO[bytes]:
        url = url_of(path)
        if url is not None:
            return remote.open_file(url, self.options)  # type: ignore[return-value]
        found = local_path(path)
        assert found is not None
        return open_regular(found)

    def walk(self, root: str, after: str = "") -> Iterator[Entry]:
        """Files below, in the order of their paths, from the one that follows `after`, one at a time."""
        url = url_of(root)
        if url is not None:
            return remote.walk(url, self.options, after)
        return local.walk(str(local_path(root)), after)
