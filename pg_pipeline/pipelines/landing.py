"""What has landed. A sensor lists one bounded page at a time, the enqueue asset everything; both see the same."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput
from pg_pipeline.pipelines.delivery import Delivery
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.spark.roots import is_inside

MARKER = "_SUCCESS"
MANIFEST = "*.manifest"
GROWING_SECONDS = 2.0  # a file that changed this short ago may not be whole
PAGE_ENTRIES = 5_000
MANIFEST_BYTES = 64 << 20
MANIFEST_FILES = 1_000_000
PATH_BYTES = 4096  # as the ledger has it

_log = logging.getLogger("pg_pipeline.landing")


@dataclass(frozen=True, slots=True)
class Found:
    """A delivery that is all there. The key covers every file's version: a changed one makes a new request."""

    name: str
    request_key: str
    files: Sequence[FileVersion]


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing. `cursor` is where the next part begins, None at the end; `newest` is the youngest change."""

    found: Sequence[Found]
    cursor: str | None
    newest: float = 0.0


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    size: int
    mtime_ns: int

    @property
    def changed(self) -> float:
        return self.mtime_ns / 1e9

    @property
    def version(self) -> FileVersion:
        try:
            modified_at = datetime.fromtimestamp(self.changed, UTC)
        except (ValueError, OverflowError):  # whoever lands files also sets their times
            modified_at = None
        return FileVersion(as_text(self.path), f"{self.size}-{self.mtime_ns}", self.size, modified_at)


def page(pipeline: FilePipeline, after: str | None = None, limit: int = PAGE_ENTRIES) -> Page:
    """Deliveries from where the last page ended, looking at about `limit` entries."""
    root = pipeline.landing_dir
    if root is None or not root.is_dir():
        return Page((), None)
    delivery = Delivery.parse(pipeline.delivery)
    found: list[Found] = []
    loose: list[_Entry] = []
    seen, newest, last = 0, 0.0, after
    for folder, entries in _folders(root, tuple(after.split("/")) if after else ()):
        if seen >= limit:
            return Page([*found, *_loose(loose)], last, newest)
        seen += len(entries) + 1
        last = "/".join(folder.relative_to(root).parts) or "."
        if delivery.kind == "folder" and any(Path(e.path).name == MARKER for e in entries):
            everything = list(_below(folder))
            seen += len(everything)
            found.extend(_closed_folder(pipeline, root, folder, entries, everything))
        elif delivery.kind == "manifest":
            for manifest in entries:
                if fnmatch.fnmatch(Path(manifest.path).name, MANIFEST):
                    found.extend(_closed_manifest(root, manifest))
        elif delivery.kind == "quiet":
            mine = _data(pipeline, entries)
            newest = max([newest, *(e.changed for e in mine)])
            loose.extend(mine)
    return Page([*found, *_loose(loose)], None, newest)


def everything(pipeline: FilePipeline) -> Iterator[Found]:
    """The whole landing folder, as the enqueue asset takes it. Of loose files, those that came before the quiet."""
    whole = page(pipeline, limit=2**62)
    quiet = Delivery.parse(pipeline.delivery).quiet_seconds
    if Delivery.parse(pipeline.delivery).kind == "quiet" and time.time() - whole.newest < quiet:
        return
    yield from whole.found


def under(pipeline: FilePipeline, paths: Sequence[str]) -> Iterator[FileVersion]:
    """Files as they were named; a folder stands for the data files in it, at any depth."""
    for given in paths:
        if not is_inside(given if "://" in given else str(Path(given).expanduser()), pipeline.allowed_roots):
            raise InvalidInput(
                f"{given} is outside the folders that {pipeline.name} may read: add its folder to the pipeline's roots."
            )
        path = Path(os.path.abspath(Path(given).expanduser())) if "://" not in given else None
        if path is None:
            from pg_pipeline.spark.files import file_version

            yield file_version(given)
        elif path.is_dir():
            yield from (entry.version for entry in _data(pipeline, _below(path)))
        else:
            entry = _entry(path)
            yield entry.version if entry else FileVersion(str(path), "missing", 0)


def _closed_folder(
    pipeline: FilePipeline, root: Path, folder: Path, entries: Sequence[_Entry], everything: Sequence[_Entry]
) -> Iterator[Found]:
    files = _data(pipeline, everything)
    marker = next(e for e in entries if Path(e.path).name == MARKER)
    if files and not _growing([marker, *files]):
        yield _found(str(folder.relative_to(root)), [marker, *files], files)


def as_text(path: str) -> str:
    """A name that is not UTF-8 as the ledger can hold it. No file is there: it is set aside as missing, and seen."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if text == path or len(text.encode()) <= PATH_BYTES:
        return text
    return f"{text[: PATH_BYTES // 4]}…{hashlib.sha256(text.encode()).hexdigest()}"


def _closed_manifest(root: Path, manifest: _Entry) -> Iterator[Found]:
    """Lines of paths, or a JSON list of paths or of {"path", "size"}; it waits for what it names."""
    place = Path(manifest.path)
    if manifest.size > MANIFEST_BYTES:
        _log.warning(
            "%r has %d bytes, more than a manifest may (%d): split it", str(place), manifest.size, MANIFEST_BYTES
        )
        return
    try:
        text = place.read_text(encoding="utf-8")
        named = (
            json.loads(text) if text.lstrip().startswith("[") else [line for line in text.split("\n") if line.strip()]
        )
        wanted = [(_text(n["path"]), n.get("size")) if isinstance(n, dict) else (_text(n), None) for n in named]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return  # still being written
    if len(wanted) > MANIFEST_FILES:
        _log.warning(
            "%r names %d files, more than a manifest may (%d): split it", str(place), len(wanted), MANIFEST_FILES
        )
        return
    files = []
    for name, size in wanted:
        entry = _entry(Path(os.path.abspath(place.parent / name))) if "\0" not in name else None
        if entry is None or (size is not None and entry.size != size):
            return
        files.append(entry)
    if files and not _growing([manifest, *files]):
        yield _found(str(place.relative_to(root)), [manifest, *files], files)


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no path")
    return name.strip()


def _loose(entries: Sequence[_Entry]) -> Iterator[Found]:
    settled = [e for e in entries if not _growing([e])]
    if settled:
        yield _found("landing", settled, settled)


def _found(name: str, keyed: Sequence[_Entry], files: Sequence[_Entry]) -> Found:
    mark = hashlib.sha256()
    for entry in sorted(keyed, key=lambda e: e.path):
        mark.update(f"{entry.path}\0{entry.size}\0{entry.mtime_ns}\0".encode("utf-8", "surrogateescape"))
    name = as_text(name)
    return Found(name, f"landing:{name[:300]}:{mark.hexdigest()[:24]}", [e.version for e in files])


def _data(pipeline: FilePipeline, entries: Iterator[_Entry] | Sequence[_Entry]) -> list[_Entry]:
    patterns = pipeline.patterns
    names = ((entry, Path(entry.path).name) for entry in entries)
    return [e for e, n in names if n[0] not in "._" and any(fnmatch.fnmatchcase(n, p) for p in patterns)]


def _growing(entries: Sequence[_Entry]) -> bool:
    now = time.time()
    return any(now - GROWING_SECONDS < entry.changed <= now + GROWING_SECONDS for entry in entries)


def _folders(root: Path, after: tuple[str, ...]) -> Iterator[tuple[Path, list[_Entry]]]:
    """Folders with their files, in order of their paths, from the one that follows `after`."""

    waiting: list[tuple[str, ...]] = [()]  # no recursion: who lands files also says how deep
    while waiting:
        parts = waiting.pop()
        folder = root.joinpath(*parts)
        files, folders = _list(folder)
        if not after or parts > after or (after == (".",) and parts):
            yield folder, files
        if any(Path(e.path).name == MARKER for e in files):
            continue  # what lies below belongs to it
        for name in reversed(folders):
            below = (*parts, name)
            if not after or after == (".",) or below >= after[: len(below)]:
                waiting.append(below)


def _below(folder: Path) -> Iterator[_Entry]:
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        files, folders = _list(folder)
        yield from files
        waiting.extend(folder / name for name in reversed(folders))


def _list(folder: Path) -> tuple[list[_Entry], list[str]]:
    """Files and subfolders, sorted; what vanishes meanwhile is left out."""
    files: list[_Entry] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as listing:
            for item in listing:
                try:
                    if item.is_symlink() and item.is_dir():
                        continue  # what it leads to is in landing anyway, or not ours; and links may go round
                    if item.is_dir():
                        if not item.name.startswith((".", "_")):
                            folders.append(item.name)
                    elif item.is_file():
                        found = item.stat()
                        files.append(_Entry(item.path, found.st_size, found.st_mtime_ns))
                except OSError:
                    continue
    except OSError:
        pass
    return sorted(files, key=lambda e: e.path), sorted(folders)


def _entry(path: Path) -> _Entry | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _Entry(str(path), found.st_size, found.st_mtime_ns)
