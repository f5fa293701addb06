"""What fsspec reaches: listed in the order of the paths, stated afresh, read in blocks."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from pg_pipeline.errors import ConfigurationError
from pg_pipeline.storage.entry import Entry
from pg_pipeline.storage.options import resolved
from pg_pipeline.storage.urls import BUCKETS, EXTRAS, Url

BLOCK = 8 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ETAG = ("ETag", "etag")
_MODIFIED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


def connected(url: Url, options: Mapping[str, Any]) -> Any:
    """The file system; fsspec keeps one per process and options."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.core import url_to_fs
    from fsspec.registry import get_filesystem_class

    try:
        kind = get_filesystem_class(url.protocol)
    except ImportError as error:
        extra = EXTRAS[url.protocol]
        how = f"pip install 'pg-pipeline[{extra}]'" if extra else str(error)
        raise ConfigurationError(f"{url.protocol}:// needs a package that is not installed here: {how}.") from None
    # A listing that was kept would hide that a file has changed.
    uncached = {"use_listings_cache": False} if issubclass(kind, AsyncFileSystem) else {}
    return url_to_fs(url.store, **uncached, **resolved(options))[0]


def entry(url: Url, options: Mapping[str, Any]) -> Entry:
    system = connected(url, options)
    _check_name(url)
    found = system.info(_inner(url))
    if found["type"] != "file":
        raise FileNotFoundError(errno.ENOENT, "there is no file", str(url))
    return _entry(str(url), found)


def open_file(url: Url, options: Mapping[str, Any]) -> io.RawIOBase:
    _check_name(url)
    return _Stream(connected(url, options).open(_inner(url), "rb", block_size=BLOCK))


def walk(url: Url, options: Mapping[str, Any], after: str = "") -> Iterator[Entry]:
    """Files below, in the order of their paths, from the one that follows `after`; folders that begin with . or _ are
    left alone. S3 is listed by pages of 1,000 keys, other stores by folder."""
    system = connected(url, options)
    root = Url(url.protocol, url.host, url.key.rstrip("/") + "/" if url.key.rstrip("/") else "")
    found = _walk_s3(system, root, after) if url.protocol == "s3" else _walk_folders(system, root, after)
    for path, info in found:
        name = path[len(root.key) :]
        if not any(part.startswith((".", "_")) for part in name.split("/")[:-1]):
            yield _entry(f"{root.store}{path}", info)


def _walk_s3(system: Any, root: Url, after: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    start = root.key + after
    while True:
        page = system.call_s3("list_objects_v2", Bucket=root.host, Prefix=root.key, StartAfter=start, MaxKeys=1000)
        contents = page.get("Contents", [])
        for item in contents:
            if not item["Key"].endswith("/"):  # what consoles make to show a folder
                yield item["Key"], {**item, "size": item["Size"]}
        if not page.get("IsTruncated") or not contents:
            return
        start = contents[-1]["Key"]


def _walk_folders(system: Any, root: Url, after: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    waiting = [("", iter(_folder(system, root, "")))]
    while waiting:
        below, listed = waiting[-1]
        name, info = next(listed, ("", {}))
        path = below + name
        if not name:
            waiting.pop()
        elif not name.endswith("/"):
            if path > after:
                yield root.key + path, info
        elif path >= after or after.startswith(path):
            waiting.append((path, iter(_folder(system, root, path))))


def _folder(system: Any, root: Url, below: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Sorted as the whole paths are: a folder's name ends with a slash."""
    try:
        listed = system.ls(_inner(Url(root.protocol, root.host, root.key + below)), detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = {}
    for info in listed:
        name = info["name"].rstrip("/").rpartition("/")[2]
        if info["type"] == "directory" and not name.startswith((".", "_")):
            found[name + "/"] = info
        elif info["type"] == "file":
            found[name] = info
    return sorted(found.items(), key=itemgetter(0))


def _entry(path: str, info: Mapping[str, Any]) -> Entry:
    etag = next((str(info[name]).strip('"') for name in _ETAG if info.get(name)), None)
    modified = next((info[name] for name in _MODIFIED if info.get(name) is not None), None)
    return Entry(path, int(info.get("size") or 0), _nanoseconds(modified), etag)


def _nanoseconds(modified: Any) -> int | None:
    if isinstance(modified, str):
        try:
            modified = datetime.fromisoformat(modified)
        except ValueError:
            return None
    if isinstance(modified, int | float):
        return round(modified * 1_000_000) * 1000  # a listing and a look round alike
    if not isinstance(modified, datetime):
        return None
    aware = modified if modified.tzinfo else modified.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000


def _inner(url: Url) -> str:
    """As the file system names it. Made here, since fsspec would cut a URL at `?` and `#`."""
    bucket = url.host.partition("@")[0]
    return f"{bucket}/{url.key}".rstrip("/") if url.protocol in (*BUCKETS, "memory") else f"/{url.key}"


def _check_name(url: Url) -> None:
    """Names that lead elsewhere than they say: nothing can be there."""
    if url.climbs or not url.key or url.key.endswith("/") or (url.protocol == "s3" and "?versionId=" in url.key):
        raise FileNotFoundError(errno.ENOENT, "no file can have this name", str(url))


class _Stream(io.RawIOBase):
    """An open file. What a store says when it fails must not be taken for what is wrong with the file."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._file.readinto(buffer))
        except OSError as error:
            if error.errno is None and not isinstance(error, FileNotFoundError | PermissionError):
                raise OSError(errno.EIO, str(error)) from error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
