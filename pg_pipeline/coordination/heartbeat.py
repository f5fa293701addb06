"""The thread that keeps a worker's leases: one direct connection, one row renewed, never a task row."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg

from pg_pipeline.coordination import failpoints
from pg_pipeline.coordination.database import Connection, Database, typed
from pg_pipeline.coordination.lease import Lease
from pg_pipeline.errors import DatabaseUnreachable, WorkerUnknown

_log = logging.getLogger("pg_pipeline.heartbeat")
RECONNECT_SECONDS = 0.2
STOP_SECONDS = 0.2  # listening can't be interrupted: the longest that a stop waits for it


class Heartbeat:
    """Renews the worker row, reconciles leases, and hears of new work."""

    def __init__(
        self,
        db: Database,
        worker: UUID,
        *,
        register: Callable[[Connection], None],
        on_lost: Callable[[Lease, str], None],
        interval: float,
        listen: bool,
        queue: str,
    ) -> None:
        self._db = db
        self._worker = worker
        self._register = register
        self._on_lost = on_lost
        self._interval = interval
        self._listen = listen
        self._queue = queue
        self._lock = threading.Lock()
        self._leases: dict[UUID, Lease] = {}
        self._settling: set[UUID] = set()
        self._pending: set[UUID] = set()
        self._stop = threading.Event()
        self.woken = threading.Event()
        self.last_beat = time.monotonic()
        self._heard_at = "-infinity"  # the database's time of the last beat
        self._conn = self._connect(first=True)
        self._thread = threading.Thread(target=self._run, name="pg_pipeline-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._conn.close()

    # What the process knows. A claim is pending from before it is asked until its leases are held.
    def pending(self, claim: UUID) -> None:
        with self._lock:
            self._pending.add(claim)

    def hold(self, claim: UUID, leases: list[Lease]) -> None:
        with self._lock:
            self._pending.discard(claim)
            self._leases.update({lease.token: lease for lease in leases})

    def settling(self, lease: Lease) -> None:
        """From here on a missing lease is not news: the finish under way may have ended it."""
        with self._lock:
            self._settling.add(lease.token)

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._settling.discard(lease.token)
            self._leases.pop(lease.token, None)

    def keep(self, lease: Lease) -> None:
        with self._lock:
            self._settling.discard(lease.token)

    @property
    def held(self) -> list[Lease]:
        with self._lock:
            return list(self._leases.values())

    def _connect(self, *, first: bool = False) -> Connection:
        conn = self._db.connect()
        if first:
            self._register(conn)
        if self._listen:
            conn.execute("listen pg_pipeline")
        return conn

    def _run(self) -> None:
        relock = False
        while not self._stop.is_set():
            try:
                if self._conn.closed:
                    self._conn = self._connect()
                    relock = True
                relock = not self._beat(relock)
                self._wait()
            except WorkerUnknown as error:
                _log.error("%s", error)
                self._lose_all("its worker is not registered any more")
                self._stop.wait(self._interval)
            except (psycopg.Error, DatabaseUnreachable) as error:
                # The lease outlasts a restart of Postgres; what was lost meanwhile the next beat says.
                _log.warning("heartbeat: %s; trying again", error)
                self._conn.close()
                self._stop.wait(RECONNECT_SECONDS)
            except Exception:  # noqa: BLE001 - without its heart a worker loses everything it holds
                _log.exception("heartbeat: trying again")
                self._conn.close()
                self._stop.wait(RECONNECT_SECONDS)

    def _beat(self, relock: bool) -> bool:
        """One beat; False while the session's lock could not be taken (an old session may still hold it)."""
        with self._lock:
            known = list(self._leases.values())
            pending = list(self._pending)
        failpoints.hit("heartbeat.before_beat")
        try:
            row = self._conn.execute(
                "select pipeline.beat(%s, %s, %s, %s, %s, %s) as answer",
                (self._worker, [k.task_id for k in known], [k.token for k in known], pending, relock, self._heard_at),
            ).fetchone()
        except psycopg.Error as error:
            raise typed(error) from error
        failpoints.hit("heartbeat.after_beat")
        self.last_beat = time.monotonic()
        assert row is not None
        answer: dict[str, Any] = row["answer"]
        self._heard_at = answer["at"]
        for kind, why in (("lost", "another worker took it over"), ("ended", "its execution ended")):
            for token in map(UUID, answer[kind]):
                self._lose(token, why)
        if answer["work"]:
            self.woken.set()
        if answer["bloated"]:
            with suppress(psycopg.Error):  # housekeeping: a connection that died of it is the next beat's trouble
                self._conn.execute("select pipeline.compact()")
        return bool(answer["locked"])

    def _lose(self, token: UUID, why: str) -> None:
        with self._lock:
            if token in self._settling:
                return
            lease = self._leases.pop(token, None)
        if lease is not None:
            _log.warning("lease lost: %s: %s", lease, why)
            # A thread of its own: cancelling a Spark job may take longer than the other leases have.
            threading.Thread(target=self._report, args=(lease, why), name="pg_pipeline-lost", daemon=True).start()

    def _report(self, lease: Lease, why: str) -> None:
        try:
            self._on_lost(lease, why)
        except Exception:  # noqa: BLE001 - the caller's code; there is nobody else to tell
            _log.exception("on_lost failed for %s", lease)

    def _lose_all(self, why: str) -> None:
        for lease in self.held:
            self._lose(lease.token, why)

    def _wait(self) -> None:
        if not self._listen:
            self._stop.wait(self._interval)
            return
        until = time.monotonic() + self._interval
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            for note in self._conn.notifies(timeout=min(left, STOP_SECONDS)):
                if note.payload == self._queue:
                    self.woken.set()
