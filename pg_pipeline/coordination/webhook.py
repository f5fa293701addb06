"""One webhook on its way: signed, to an address that was checked and is the one connected to, and nowhere else."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

REPLAY_WINDOW = 300  # seconds; a receiver refuses what was signed longer ago
TIMESTAMP, SIGNATURE, KEY = "X-Pg-Pipeline-Timestamp", "X-Pg-Pipeline-Signature", "Idempotency-Key"
# An address that is itself a secret is kept in a variable; only such names, or any variable could be sent away.
_FROM_ENVIRONMENT = re.compile(r"env:(WEBHOOK_[A-Z0-9_]{1,100})\Z")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Refused(OSError):
    """An address that webhooks may not go to."""


def signature(secret: str | None, body: bytes, key: str, now: int | None = None) -> dict[str, str]:
    """HMAC-SHA256 over key, timestamp and body; the receiver refuses old timestamps."""
    if not secret:
        return {}
    timestamp = str(int(time.time()) if now is None else now)
    return {TIMESTAMP: timestamp, SIGNATURE: f"sha256={_digest(secret, key, timestamp, body)}"}


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, window: float = REPLAY_WINDOW, now: float | None = None
) -> bool:
    """For receivers: whether we signed this body, not longer ago than `window` seconds."""
    found = {name.lower(): value for name, value in headers.items()}
    timestamp, sent = found.get(TIMESTAMP.lower(), ""), found.get(SIGNATURE.lower(), "")
    if not re.fullmatch(r"[0-9]{1,12}", timestamp):
        return False
    expected = f"sha256={_digest(secret, found.get(KEY.lower(), ''), timestamp, body)}"
    fresh = abs((time.time() if now is None else now) - int(timestamp)) <= window
    return hmac.compare_digest(sent.encode(), expected.encode()) and fresh


def _digest(secret: str, key: str, timestamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{key}.{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def post(
    destination: str, body: bytes, headers: Mapping[str, str], *, timeout: float, allow_private: bool
) -> str | None:
    """None, or what went wrong. Never names more of the address than its host: the rest may be a secret."""
    try:
        url = _resolved(destination)
        # Nothing of the environment but the certificates: a proxy would connect where we did not look, and
        # ~/.netrc would hand out passwords.
        with requests.Session() as session:
            session.trust_env = False
            session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
            adapter = _Adapter(allow_private=allow_private)
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            hang_up = threading.Timer(2 * timeout, adapter.hang_up)  # `timeout` is for one read; receivers may drip
            hang_up.daemon = True
            hang_up.start()
            try:
                answer = session.post(
                    url, data=body, headers=dict(headers), timeout=timeout, allow_redirects=False, stream=True
                )
                status = answer.status_code  # and no byte of its body
                answer.close()
            finally:
                hang_up.cancel()
    except Refused as error:
        return str(error)
    except (requests.RequestException, OSError, ValueError) as error:
        return _said(error)
    if 300 <= status < 400:
        return f"the receiver answered {status}: redirects are not followed, name the address that it leads to"
    return None if 200 <= status < 300 else f"the receiver answered {status}"


def _resolved(destination: str) -> str:
    named = _FROM_ENVIRONMENT.match(destination)
    if named:
        url = os.environ.get(named[1])
        if not url:
            raise Refused(f"the webhook's address is to be in the variable {named[1]}, which is not set here")
    else:
        url = destination
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise Refused("the webhook's address is not a valid http address") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Refused("the webhook's address is not an http address: it must begin with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise Refused("the webhook's address has a password in it: sign with a secret instead")
    return url


def check(host: str, address: str) -> None:
    """Raises Refused for an address that is not on the public Internet, however it is written."""
    ip = public_form(ipaddress.ip_address(address.split("%", 1)[0]))
    if not ip.is_global or ip.is_multicast or ip.is_reserved or ip.is_unspecified:
        raise Refused(f"{host} leads to {ip}, which is not a public address: allow it if it is meant")


def public_form(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address inside an IPv6 one that stands for it: mapped, 6to4, Teredo, NAT64."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)
    return ip


class _Adapter(HTTPAdapter):
    """Resolves, checks and connects in one step: a name that moves between look and connection gains nothing."""

    def __init__(self, *, allow_private: bool) -> None:
        self.sockets: list[socket.socket] = []
        self.allow_private = allow_private
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        adapter = self

        def connect(connection: HTTPConnection) -> socket.socket:
            host = connection._dns_host
            found = socket.getaddrinfo(host, connection.port, type=socket.SOCK_STREAM)
            if not adapter.allow_private:
                for *_, address in found:
                    check(connection.host, str(address[0]))
            trouble: OSError = OSError(f"{connection.host} has no address")
            for family, kind, protocol, _, address in found:
                made = socket.socket(family, kind, protocol)
                try:
                    made.settimeout(connection.timeout if isinstance(connection.timeout, int | float) else 10.0)
                    made.connect(address)
                except OSError as error:
                    made.close()
                    trouble = error
                    continue
                adapter.sockets.append(made)
                return made
            raise trouble

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return connect(self)

        class Secure(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return connect(self)

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    def hang_up(self) -> None:
        for one in self.sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _said(error: BaseException) -> str:
    """The cause, without the address: libraries put the whole of it into their messages."""
    causes: list[BaseException] = []
    todo: list[Any] = [error]
    while todo and len(causes) < 20:
        one = todo.pop(0)
        if isinstance(one, BaseException) and one not in causes:
            causes.append(one)
            todo += [getattr(one, "reason", None), one.__cause__, one.__context__, *one.args]
    for one in causes:
        if isinstance(one, Refused):
            return str(one)
    for one in causes:
        if isinstance(one, OSError) and one.strerror and not isinstance(one, requests.RequestException):
            return f"{type(one).__name__}: {one.strerror}"
    return f"{type(error).__name__}: the webhook could not be delivered"
