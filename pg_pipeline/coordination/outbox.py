"""The dispatcher: delivers what commits recorded, at least once, signed, with a key that never changes."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests

from pg_pipeline.coordination import failpoints
from pg_pipeline.coordination.database import Database, dumps


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one pass over the outbox did."""

    delivered: int = 0
    failed: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Sends webhooks. `secret` signs them; addresses inside the network are refused unless allowed."""

    db: Database
    secret: str | None = None
    timeout: float = 10.0
    max_attempts: int = 10
    allow_private: bool = False

    def dispatch(self, limit: int = 20) -> Delivered:
        """Deliver what is due, once each; what fails comes back later, then becomes dead."""
        delivered = failed = dead = 0
        lease = f"{self.timeout * limit + 30:.0f} seconds"
        rows = self.db.rows("select * from pipeline.claim_outbox(%s, %s::interval, true)", (limit, lease))
        for row in rows:
            error = self._send(row)
            failpoints.hit("outbox.after_send")
            state = self.db.value(
                "select pipeline.settle_outbox(%s, %s, %s, %s)", (row["id"], row["token"], error, self.max_attempts)
            )
            delivered += error is None
            failed += error is not None and state != "dead"
            dead += state == "dead"
        return Delivered(delivered, failed, dead)

    def _send(self, row: dict[str, Any]) -> str | None:
        """None, or what went wrong."""
        body = dumps(row["payload"]).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "pg_pipeline",
            "Idempotency-Key": row["key"],
            **signature(self.secret, body, row["key"]),
        }
        try:
            refusal = None if self.allow_private else private_address(row["destination"])
            if refusal:
                return refusal
            answer = requests.post(
                row["destination"], data=body, headers=headers, timeout=self.timeout, allow_redirects=False
            )
        except (requests.RequestException, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None if 200 <= answer.status_code < 300 else f"the receiver answered {answer.status_code}"


def signature(secret: str | None, body: bytes, key: str, now: int | None = None) -> dict[str, str]:
    """HMAC-SHA256 over key, timestamp and body; the receiver refuses old timestamps."""
    if not secret:
        return {}
    timestamp = str(int(time.time()) if now is None else now)
    signed = f"{key}.{timestamp}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return {"X-Pg-Pipeline-Timestamp": timestamp, "X-Pg-Pipeline-Signature": f"sha256={digest}"}


def private_address(destination: str) -> str | None:
    """Why an address is refused, or None. Looked up at each delivery: names move."""
    parts = urlsplit(destination)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{destination} is not an http address"
    for *_, address in socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM):
        ip = ipaddress.ip_address(str(address[0]).split("%", 1)[0])
        if not ip.is_global:
            return f"{parts.hostname} leads to {ip}, which is not a public address: allow it if it is meant"
    return None
