"""What has landed. A sensor lists one bounded page at a time, the enqueue asset all that may be new; both see the
same. Nothing holds a whole listing: what is submitted is listed again, as it is taken."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput
from pg_pipeline.pipelines.delivery import Delivery
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.storage import Entry, Storage
from pg_pipeline.storage.entry import as_text
from pg_pipeline.storage.roots import is_inside
from pg_pipeline.storage.urls import canonical, is_url, local_path, url_of

MARKER = "_SUCCESS"
MANIFEST = "*.manifest"
PAGE_ENTRIES = 5_000
MANIFEST_BYTES = 64 << 20
MANIFEST_FILES = 1_000_000
_END = "\U0010ffff"  # after every name

_log = logging.getLogger("pg_pipeline.landing")


class Files(Iterable[FileVersion]):
    """The files of a delivery: listed when they are asked for, as often as they are."""

    def __init__(self, listing: Callable[[], Iterable[Entry]]) -> None:
        self._listing = listing

    def __iter__(self) -> Iterator[FileVersion]:
        return (entry.file for entry in self._listing())


@dataclass(frozen=True, slots=True)
class Found:
    """A delivery that is all there. The key covers every file's version: a changed one makes a new request."""

    name: str
    request_key: str
    files: Files


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing. `cursor` is where the next part begins, None at the end; `newest` is the youngest change,
    `last` the last path seen."""

    found: Sequence[Found]
    cursor: str | None
    newest: float = 0.0
    last: str = ""


def page(pipeline: FilePipeline, after: str | None = None, limit: int = PAGE_ENTRIES) -> Page:
    """Deliveries from where the last page ended, looking at about `limit` entries."""
    if pipeline.landing_place is None:
        return Page((), None)
    looking = _Looking(pipeline, pipeline.landing_place, after or "", limit)
    found = list(looking.deliveries())
    if looking.loose:
        settled = looking.loose
        found.append(_found("landing", settled, lambda: settled))
    return Page(found, looking.last if looking.more else None, looking.newest, looking.last)


def everything(pipeline: FilePipeline, after: str | None = None) -> Iterator[Found]:
    """The whole landing folder, or what follows `after` in it. Of loose files, those that came before the quiet."""
    place = pipeline.landing_place
    if place is None:
        return
    delivery = Delivery.parse(pipeline.delivery)
    if delivery.kind != "quiet":
        yield from _Looking(pipeline, place, after or "", 2**62).deliveries()
        return
    newest, mark, count = 0.0, hashlib.sha256(), 0
    for entry in _data(pipeline, pipeline.storage.walk(place, after or "")):
        newest = max(newest, entry.changed)
        if not entry.growing:
            mark.update(entry.mark)
            count += 1
    if not count or time.time() - newest < delivery.quiet_seconds:
        return

    def settled() -> Iterator[Entry]:
        entries = _data(pipeline, pipeline.storage.walk(place, after or ""))
        return (entry for entry in entries if not entry.growing and entry.changed <= newest)

    yield Found("landing", _key("landing", mark), Files(settled))


def containing(pipeline: FilePipeline, path: str) -> Iterator[Found]:
    """The deliveries that a file in landing completes, or came too late for: of the folder that a marker closes, or
    of the manifests beside it."""
    place = pipeline.landing_place
    if place is None or not path.startswith(place.rstrip("/") + "/"):
        return
    folder = path.rpartition("/")[0]
    if Delivery.parse(pipeline.delivery).kind == "manifest":
        looking = _Looking(pipeline, place, "", 2**62)
        for entry in pipeline.storage.walk(folder):
            if entry.path.rpartition("/")[0] == folder and fnmatch.fnmatchcase(entry.name, MANIFEST):
                yield from looking.manifest(entry)
        return
    looking = _Looking(pipeline, place, "", 2**62)
    closed = looking.closing(folder)
    if closed is not None:
        yield from looking.folder(closed)


def under(pipeline: FilePipeline, paths: Sequence[str]) -> Iterator[FileVersion]:
    """Files as they were named; a folder stands for the data files in it, at any depth."""
    for given in paths:
        named = is_url(given) or given.startswith("file://")
        wanted = canonical(given) if named else os.path.abspath(Path(given).expanduser())
        if not is_inside(wanted, pipeline.allowed_roots):
            raise InvalidInput(
                f"{given} is outside the folders that {pipeline.name} may read: add its folder to the pipeline's roots."
            )
        folder = local_path(wanted)
        entry = None if folder is not None and folder.is_dir() else pipeline.storage.find(wanted)
        if entry is not None:
            yield entry.file
            continue
        found = False
        if folder is None or folder.is_dir():
            for entry in _data(pipeline, pipeline.storage.walk(str(folder or wanted))):
                found = True
                yield entry.file
        if not found and (folder is None or not folder.is_dir()):
            yield FileVersion(wanted, "missing", 0)


def exists(pipeline: FilePipeline, path: str) -> bool:
    """Whether there is a file, or a folder with files in it."""
    folder = local_path(path)
    if folder is not None:
        return folder.exists()
    storage = pipeline.storage
    return storage.find(path) is not None or any(True for _ in storage.walk(path))


class _Looking:
    """One look through landing, in the order of the paths."""

    def __init__(self, pipeline: FilePipeline, place: str, after: str, limit: int) -> None:
        self.pipeline = pipeline
        self.storage: Storage = pipeline.storage
        self.kind = Delivery.parse(pipeline.delivery).kind
        self.place = place.rstrip("/")
        self.limit = limit
        self.last = after
        self.seen = 0
        self.more = False
        self.newest = 0.0
        self.loose: list[Entry] = []
        self._marked: dict[str, bool] = {}

    def deliveries(self) -> Iterator[Found]:
        going = True
        while going:
            going = False
            for entry in self.storage.walk(self.place, self.last):
                if self.seen >= self.limit:
                    self.more = True
                    return
                self.seen += 1
                self.last = entry.path[len(self.place) + 1 :]
                if self.kind == "folder" and entry.name == MARKER:
                    folder = entry.path.rpartition("/")[0]
                    if self.closing(folder) == folder:
                        yield from self.folder(folder)
                    if folder != self.place:  # what lies below belongs to it
                        self.last = f"{folder[len(self.place) + 1 :]}/{_END}"
                        going = True
                elif self.kind == "manifest" and fnmatch.fnmatchcase(entry.name, MANIFEST):
                    yield from self.manifest(entry)
                elif self.kind == "quiet" and is_data(self.pipeline, entry.name):
                    self.newest = max(self.newest, entry.changed)
                    if not entry.growing:
                        self.loose.append(entry)
                if going:
                    break

    def closing(self, folder: str) -> str | None:
        """The topmost folder of landing with a marker that this one is, or is in."""
        inner = folder[len(self.place) :].split("/")[1:] if folder != self.place else []
        for depth in range(len(inner) + 1):
            candidate = "/".join([self.place, *inner[:depth]])
            if candidate not in self._marked:
                self._marked[candidate] = self.storage.find(f"{candidate}/{MARKER}") is not None
            if self._marked[candidate]:
                return candidate
        return None

    def folder(self, folder: str) -> Iterator[Found]:
        name = folder[len(self.place) + 1 :] or "."
        mark, count = hashlib.sha256(), 0
        for entry in self.storage.walk(folder):
            self.seen += 1
            data = is_data(self.pipeline, entry.name)
            if not data and entry.path != f"{folder}/{MARKER}":
                continue
            if entry.growing:
                return
            mark.update(entry.mark)
            count += data
        if count:
            settled = lambda: (e for e in _data(self.pipeline, self.storage.walk(folder)) if not e.growing)  # noqa: E731
            yield Found(as_text(name), _key(name, mark), Files(settled))

    def manifest(self, manifest: Entry) -> Iterator[Found]:
        """Lines of paths, or a JSON list of paths or of {"path", "size"}; it waits for what it names."""
        if manifest.size > MANIFEST_BYTES:
            _log.warning(
                "%r has %d bytes, more than a manifest may (%d): split it", manifest.path, manifest.size, MANIFEST_BYTES
            )
            return
        try:
            with self.storage.open(manifest.path) as stream:
                text = stream.read(manifest.size + 1).decode()
            named = json.loads(text) if text.lstrip().startswith("[") else [n for n in text.split("\n") if n.strip()]
            wanted = [(_text(n["path"]), n.get("size")) if isinstance(n, dict) else (_text(n), None) for n in named]
        except (FileNotFoundError, PermissionError, ValueError, KeyError, TypeError, RecursionError):
            return  # still being written
        if len(wanted) > MANIFEST_FILES:
            _log.warning(
                "%r names %d files, more than a manifest may (%d): split it",
                manifest.path,
                len(wanted),
                MANIFEST_FILES,
            )
            return
        files = []
        for name, size in wanted:
            try:
                entry = self._named(manifest, name)
            except InvalidInput as error:
                _log.warning("%r names what cannot be read: %s", manifest.path, error)
                return
            if entry is None or (size is not None and entry.size != size):
                return
            files.append(entry)
        if files and not any(entry.growing for entry in (manifest, *files)):
            yield _found(manifest.path[len(self.place) + 1 :], [manifest, *files], lambda: files)

    def _named(self, manifest: Entry, name: str) -> Entry | None:
        path = _beside(manifest.path, name) if "\0" not in name else name
        url = url_of(path)
        # No file can be there: it is handed on, for all to see, and set aside by whoever would read it.
        return Entry(path, 0, None, "missing") if url is not None and url.climbs else self.storage.find(path)


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no path")
    return name.strip()


def _beside(manifest: str, name: str) -> str:
    """What a manifest names: a path or URL, or a name beside it."""
    url = url_of(manifest)
    if url is None or is_url(name):
        return canonical(name) if is_url(name) else os.path.abspath(Path(manifest).parent / name)
    return f"{url.store}{name[1:]}" if name.startswith("/") else f"{manifest.rpartition('/')[0]}/{name}"


def _found(name: str, keyed: Sequence[Entry], files: Callable[[], Iterable[Entry]]) -> Found:
    mark = hashlib.sha256()
    for entry in sorted(keyed, key=lambda e: e.path):
        mark.update(entry.mark)
    return Found(as_text(name), _key(name, mark), Files(files))


def _key(name: str, mark: Any) -> str:
    return f"landing:{as_text(name)[:300]}:{mark.hexdigest()[:24]}"


def _data(pipeline: FilePipeline, entries: Iterable[Entry]) -> Iterator[Entry]:
    return (entry for entry in entries if is_data(pipeline, entry.name))


def is_data(pipeline: FilePipeline, name: str) -> bool:
    """Whether the name is one of the pipeline's data files."""
    return not name.startswith((".", "_")) and any(fnmatch.fnmatchcase(name, p) for p in pipeline.patterns)
