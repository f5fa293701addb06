"""The dispatcher: delivers what commits recorded, at least once, signed, with a key that never changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pg_pipeline.coordination import failpoints, webhook
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
    secret: str | None = field(default=None, repr=False)
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
            webhook.KEY: row["key"],
            **webhook.signature(self.secret, body, row["key"]),
        }
        return webhook.post(row["destination"], body, headers, timeout=self.timeout, allow_private=self.allow_private)
