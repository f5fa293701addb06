"""Names of files: paths of this machine, and URLs of the stores that are known. A URL's key is taken as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pg_pipeline.errors import InvalidInput

# Each protocol, and the extra that brings its package. Whoever may submit may name any of these, so none reaches
# arbitrary addresses of the web, and none reads through another.
EXTRAS = {"s3": "s3", "gs": "gcs", "abfs": "azure", "sftp": "sftp", "hdfs": "", "webhdfs": "", "memory": ""}
# Other spellings of the same place: one file must not be two in the ledger.
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs", "ssh": "sftp"}
BUCKETS = ("s3", "gs", "abfs")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*?)://([^/]*)/?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Url:
    """`host` is the bucket, or container@account, or user@host:port. `key` begins without a slash."""

    protocol: str
    host: str
    key: str

    def __str__(self) -> str:
        return f"{self.protocol}://{self.host}/{self.key}"

    @property
    def store(self) -> str:
        return f"{self.protocol}://{self.host}/"

    @property
    def climbs(self) -> bool:
        """No store has `..`, also where it is written as %2e%2e: whoever writes them means to get out."""
        return any(unquote(part) in (".", "..") for part in self.key.split("/"))


def is_url(path: str) -> bool:
    return not path.startswith(("/", "file:")) and _URL.match(path) is not None


def url_of(path: str) -> Url | None:
    """The parts of a URL, None for a path of this machine. InvalidInput never repeats what may be a secret."""
    match = _URL.match(path) if is_url(path) else None
    if match is None:
        return None
    protocol, host, key = match[1].lower(), match[2], match[3]
    protocol = _SAME.get(protocol, protocol)
    if protocol not in EXTRAS:
        raise InvalidInput(
            f"Files cannot be read from {protocol}://: use a path, a file:// URL, or one of "
            f"{', '.join(f'{name}://' for name in EXTRAS)}."
        )
    user, at, _ = host.rpartition("@")
    if at and (":" in user or "@" in user or protocol in ("s3", "gs")):
        raise InvalidInput(
            f"A {protocol}:// URL has credentials in it: leave them out and give them in the environment, "
            "or as storage_options of the pipeline."
        )
    if "::" in host:  # to fsspec the beginning of another URL
        raise InvalidInput(f"A {protocol}:// URL has :: in its host, where one name belongs: correct it.")
    if not host and protocol not in ("memory", "hdfs"):
        raise InvalidInput(f"A {protocol}:// URL names no {'bucket' if protocol in BUCKETS else 'host'}: add it.")
    return Url(protocol, host, key)


def canonical(path: str) -> str:
    """The one spelling that the ledger knows; a path of this machine stays as it is."""
    url = url_of(path)
    return path if url is None else str(url)


def local_path(path: str) -> Path | None:
    if is_url(path):
        return None
    return Path(unquote(urlsplit(path).path)) if path.startswith("file:") else Path(path)
