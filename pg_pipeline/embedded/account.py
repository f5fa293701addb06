"""Whom the embedded server runs as.

Postgres refuses to run as root. Root therefore runs it as the system user `pg_pipeline`, which nobody logs in as,
and lets that one user pass through (not list, not read) the folders above the data.
"""

import logging
import os
import pwd
import stat
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pg_pipeline.errors import ConfigurationError

SYSTEM_USER = "pg_pipeline"

_log = logging.getLogger(__name__)

_ACL = "system.posix_acl_access"
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int


def server_account() -> Account:
    """The account that the server runs as; as root it is made if it is not there yet."""
    uid = os.geteuid()
    if uid != 0:
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            raise ConfigurationError(
                f"The embedded Postgres cannot run as user id {uid}, which has no name on this machine: "
                "add it to /etc/passwd, or set PG_PIPELINE_DSN to your own Postgres."
            ) from None
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        entry = _create_system_user()
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _create_system_user() -> pwd.struct_passwd:
    command = [
        *("useradd", "--system", "--user-group", "--no-create-home"),
        *("--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", SYSTEM_USER),
    ]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        reason = made.stderr.strip()
    except FileNotFoundError:
        reason = "there is no useradd"
    try:
        return pwd.getpwnam(SYSTEM_USER)  # also when another process was quicker
    except KeyError:
        raise ConfigurationError(
            f"Postgres does not run as root and the system user {SYSTEM_USER} could not be made ({reason}): "
            "make it, run as another user, or set PG_PIPELINE_DSN to your own Postgres."
        ) from None


def let_pass(account: Account, path: Path) -> None:
    """Let the account enter every folder above `path`; changes nothing where it already can."""
    if os.geteuid() != 0 or account.uid == 0:
        return
    for folder in reversed(path.parents):
        if not _may_enter(account, folder):
            _grant_entry(account, folder)


def let_read(folder: Path) -> None:
    """Open an installed package's folder, whose content is public anyway, when a strict umask closed it."""
    if os.geteuid() != 0:
        return
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            continue
        wanted = 0o555 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o444
        if status.st_mode & 0o005 != wanted & 0o005:
            path.chmod(stat.S_IMODE(status.st_mode) | wanted)


def _may_enter(account: Account, folder: Path) -> bool:
    status = folder.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    entries = _read_acl(folder)
    mask = next((permission for tag, permission, _ in entries if tag == _MASK), 7)  # chmod narrows it
    for tag, permission, identity in entries:
        if tag == _USER and identity == account.uid:
            return bool(permission & mask & 1)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _read_acl(folder: Path) -> list[tuple[int, int, int]]:
    if sys.platform != "linux":
        return []
    try:
        raw = os.getxattr(folder, _ACL)
    except OSError:
        return []
    return [struct.unpack_from("<HHI", raw, offset) for offset in range(4, len(raw), 8)]


def _grant_entry(account: Account, folder: Path) -> None:
    """An access-control entry for this one user; opening the folder to everyone is only the fallback."""
    mode = folder.stat().st_mode
    entries = [entry for entry in _read_acl(folder) if entry[0] != _MASK]
    if not entries:
        entries = [
            (_OWNER, mode >> 6 & 7, _NO_ID),
            (_GROUP, mode >> 3 & 7, _NO_ID),
            (_OTHER, mode & 7, _NO_ID),
        ]
    entries = [entry for entry in entries if (entry[0], entry[2]) != (_USER, account.uid)]
    entries.append((_USER, 1, account.uid))
    mask = 0
    for tag, permission, _ in entries:
        if tag not in (_OWNER, _OTHER):
            mask |= permission
    entries.append((_MASK, mask, _NO_ID))
    packed = b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries, key=lambda entry: (entry[0], entry[2])))
    try:
        if sys.platform != "linux":
            raise OSError("no access-control lists")
        os.setxattr(folder, _ACL, struct.pack("<I", 2) + packed)
    except OSError:
        try:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
        except OSError as error:
            raise ConfigurationError(
                f"The system user {account.name}, whom Postgres runs as, cannot enter {folder} ({error.strerror}): "
                "set PG_PIPELINE_STATE_DIR to a folder it can enter, or PG_PIPELINE_DSN to your own Postgres."
            ) from None
        _log.warning("%s can now be entered (not listed) by everyone, so that Postgres can reach its data.", folder)
