"""Where a pipeline may read, and what it may open: regular files below its roots, after every link is resolved."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from pg_pipeline.errors import InvalidInput
from pg_pipeline.storage.urls import local_path, url_of


class NotRegular(Exception):
    """A pipe, a socket or a device."""


def is_inside(path: str, roots: Sequence[str]) -> bool:
    """Whether a path leads below one of the roots; no roots means anywhere. URLs are compared by their parts."""
    if not roots:
        return True
    return any(_below(path, root) for root in roots)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """A FIFO or a device would block, or never end: it is not opened, and one put here meanwhile not waited for."""
    _check_kind(path, Path(path).stat().st_mode)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_kind(path, os.fstat(handle).st_mode)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def _check_kind(path: str | os.PathLike[str], mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise NotRegular(path)


def _below(path: str, root: str) -> bool:
    mine, theirs = _place(path), _place(root)
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return False
    return mine[1] == theirs[1] or mine[1].startswith(theirs[1].rstrip("/") + "/")


def _place(path: str) -> tuple[str, str] | None:
    """(what holds it, its real path there); None for what is not a path."""
    try:
        url = url_of(path)
        local = local_path(path)
    except (InvalidInput, ValueError):
        return None
    if url is not None:
        return None if url.climbs else (url.store, f"/{url.key}")
    return "", os.path.realpath(str(local)) if "\0" not in path else ""
