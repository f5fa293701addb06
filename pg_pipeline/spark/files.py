"""Opening one file: its version, its compression, and the reason when it is bad. No Spark here."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import IO, Any, Literal

import pyarrow as pa

from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput
from pg_pipeline.storage import Entry, Storage
from pg_pipeline.storage.roots import NotRegular, is_inside

Reason = Literal[
    "corrupt",
    "bad_lines",
    "wrong_schema",
    "wrong_header",
    "wrong_format",
    "empty",
    "missing",
    "vanished",
    "changed",
    "no_permission",
    "outside",
    "too_large",
    "hidden",
]
REASONS: tuple[Reason, ...] = Reason.__args__  # type: ignore[attr-defined]

LOCAL = Storage()
_STAMP = re.compile(r"\d{1,20}-\d{1,20}\Z")  # size and modification time
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
LINE_BYTES = 64 << 20
# What a byte can unpack to, at most: deflate's longest match, and a block of zstd that repeats one byte.
_MOST = {"gzip": 1032, "zstd": 1 << 15}
_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}


class BadFile(Exception):
    """This file goes to quarantine."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


def file_version(path: str, storage: Storage = LOCAL, *, content_hash: bool = False) -> FileVersion:
    """A file as it is now, as it should be submitted; raises FileNotFoundError when there is none."""
    found = storage.entry(path).file
    return replace(found, version=f"sha256:{sha256(path, storage)}") if content_hash else found


def is_version(path: str, version: str, size: int, now: Entry, storage: Storage = LOCAL) -> bool:
    """Whether a file is still what was submitted. Where the store has no etag to hold another's version against, its
    size must do."""
    if now.size != size:
        return False
    if version.startswith("sha256:"):
        return sha256(path, storage) == version.removeprefix("sha256:")
    if _STAMP.match(version):  # an etag has more digits
        return version in (now.stamp, now.version)
    return now.etag is None or version.strip('"') == now.etag


def check_inside(path: str, roots: Sequence[str]) -> None:
    if not is_inside(path, roots):
        raise BadFile("outside", "the path leads outside the folders that the pipeline may read (its roots)")


def check_unchanged(path: str, version: str, size: int, storage: Storage = LOCAL, *, reading: bool) -> Entry:
    """The file's state, or BadFile: `reading` says whether it was there before."""
    try:
        now = storage.entry(path)
        unchanged = is_version(path, version, size, now, storage)
    except (FileNotFoundError, NotADirectoryError):
        if reading:
            raise BadFile("vanished", "the file was there and is gone") from None
        raise BadFile("missing", "there is no file at this path") from None
    except PermissionError:
        raise BadFile("no_permission", "the worker may not read this file") from None
    except (OSError, ValueError, InvalidInput) as error:
        # Too long, a loop of links, a NUL: no file can be there.
        if isinstance(error, OSError) and error.errno not in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
            raise
        raise BadFile("missing", f"no file can be at this path ({one_line(error)})"[:300]) from None
    if not unchanged:
        raise BadFile("changed", "the file is not the version that was submitted: submit it again")
    return now


def sha256(path: str, storage: Storage = LOCAL) -> str:
    with open_raw(path, storage) as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def compression(path: str) -> str | None:
    return _COMPRESSIONS.get(PurePosixPath(path).suffix.lower())


def open_raw(path: str, storage: Storage = LOCAL) -> IO[bytes]:
    try:
        return storage.open(path)
    except NotRegular:
        raise BadFile("wrong_format", "the path is a pipe, a socket or a device, not a file") from None


class Unpacked(io.RawIOBase):
    """What a compressed file unpacks to, up to a limit: a few kilobytes may stand for as many gigabytes."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._stream.read(len(into))
        self._read += len(data)
        if self._read > self._limit:
            raise too_large(f"it unpacks to more than {self._limit} bytes")
        into[: len(data)] = data
        return len(data)


def too_large(why: str) -> BadFile:
    return BadFile("too_large", f"{why}: raise the pipeline's max_file_bytes if that is meant")


def check_unpacks(path: str, size: int, limit: int, storage: Storage = LOCAL) -> None:
    """Read what could unpack to more than the limit up to there, for a reader that cannot be stopped on the way."""
    if size * _MOST.get(compression(path) or "", 1) <= limit:
        return
    with open_text(path, limit, storage) as stream:
        while stream.read(1 << 20):
            pass


@contextmanager
def open_text(path: str, limit: int, storage: Storage = LOCAL) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a text file, at most `limit`; its name decides how, and its first bytes must agree."""
    codec = compression(path)
    with open_raw(path, storage) as raw:
        head = raw.read(8)
        _check_magic(codec, head)
        raw.seek(0)
        if codec == "gzip":
            with gzip.GzipFile(fileobj=raw) as stream:
                yield Unpacked(stream, limit)  # type: ignore[misc]
        elif codec == "zstd":
            with pa.CompressedInputStream(raw, "zstd") as stream:
                yield Unpacked(stream, limit)  # type: ignore[misc]
        else:
            yield raw


def _check_magic(codec: str | None, head: bytes) -> None:
    if not head:
        raise BadFile("empty", "the file has no bytes")
    if codec == "gzip" and not head.startswith(_GZIP):
        raise BadFile("wrong_format", "the name says gzip and the content is not")
    if codec == "zstd" and not head.startswith(_ZSTD):
        raise BadFile("wrong_format", "the name says zstd and the content is not")
    if codec is None:
        check_text(head)


def check_text(head: bytes) -> None:
    """Compressed, Parquet and other binary content under the name of a text file."""
    for magic, name in ((_GZIP, "gzip"), (_ZSTD, "zstd"), (_PARQUET, "Parquet")):
        if head.startswith(magic):
            raise BadFile("wrong_format", f"the name says text and the content is {name}")
    if b"\x00" in head:
        raise BadFile("wrong_format", "the name says text and the content is binary")


@contextmanager
def verdicts() -> Iterator[None]:
    """Turns what reading can raise into the reason why this file is bad; a failing disk or network passes."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile("vanished", "the file was there and is gone") from None
    except PermissionError:
        raise BadFile("no_permission", "the worker may not read this file") from None
    except IsADirectoryError:
        raise BadFile("wrong_format", "the path is a folder") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadFile("corrupt", one_line(error)) from None
    except pa.ArrowInvalid as error:
        raise BadFile("corrupt", one_line(error)) from None
    except OSError as error:
        # pyarrow raises a plain OSError, without an errno, for what its codecs and parsers reject.
        if error.errno is None:
            raise BadFile("corrupt", one_line(error)) from None
        raise


def one_line(error: BaseException) -> str:
    text: Any = str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]
