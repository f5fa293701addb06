"""Files of this machine. Not through fsspec, whose local file system follows links and waits for pipes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pg_pipeline.storage.entry import Entry


def entry(path: Path) -> Entry:
    found = path.stat()
    return Entry(str(path), found.st_size, found.st_mtime_ns)


def walk(root: str, after: str = "") -> Iterator[Entry]:
    """Regular files below `root`, in the order of their paths, from the one that follows `after`; folders that begin
    with . or _ are left alone, and what vanishes meanwhile is left out. Of one folder only the names are held."""
    waiting = [("", iter(_names(root)))]  # no recursion: who lands files also says how deep
    while waiting:
        below, names = waiting[-1]
        name = next(names, None)
        if name is None:
            waiting.pop()
            continue
        path = below + name
        place = os.path.join(root, path)  # noqa: PTH118 - a million Paths would cost a minute
        if name.endswith("/"):
            if path >= after or after.startswith(path):
                waiting.append((path, iter(_names(place))))
        elif path > after:
            try:
                found = os.stat(place)  # noqa: PTH116
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield Entry(place, found.st_size, found.st_mtime_ns)


def _names(folder: str) -> list[str]:
    """Sorted as the whole paths are: a folder's name ends with a slash."""
    names: list[str] = []
    try:
        with os.scandir(folder) as listing:
            for item in listing:
                try:
                    if not item.is_dir():
                        names.append(item.name)
                    # What a link leads to is in landing anyway, or not ours; and links may go round.
                    elif not item.is_symlink() and not item.name.startswith((".", "_")):
                        names.append(item.name + "/")
                except OSError:
                    continue
    except OSError:
        pass
    names.sort()
    return names
