"""A worker: claims, finishes, fails, releases; its heartbeat keeps what it holds."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from pg_pipeline.coordination import failpoints
from pg_pipeline.coordination.database import Connection, Database, clean, made
from pg_pipeline.coordination.heartbeat import Heartbeat
from pg_pipeline.coordination.lease import Failed, Finish, Finished, Lease, Publish, result_json
from pg_pipeline.coordination.types import JSON, BatchFile
from pg_pipeline.errors import InvalidInput, LeaseLost, PgPipelineError

OnLost = Callable[[Lease, str], None]


class Worker:
    """One incarnation of one process, as a context manager: leaving it hands every lease back."""

    def __init__(
        self,
        db: Database,
        queue: str = "default",
        *,
        pipelines: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        name: str | None = None,
        run_id: str | None = None,
        on_lost: OnLost | None = None,
        heartbeat_interval: float = 0.5,
        pooled: bool = False,
    ) -> None:
        self.id: UUID = uuid4()
        self.queue = queue
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._db = db
        self._last_tenant = ""
        self._abandoned = False
        declared = (self.id, queue, self.name, _list(pipelines), _list(kinds), run_id, not pooled)

        def register(conn: Connection) -> None:
            conn.execute("select pipeline.register_worker(%s, %s, %s, %s, %s, %s, %s)", declared)

        self._heartbeat = Heartbeat(
            db,
            self.id,
            register=register,
            on_lost=on_lost or (lambda _lease, _why: None),
            interval=heartbeat_interval,
            listen=not pooled,
            queue=queue,
        )
        self._heartbeat.start()
        failpoints.hit("worker.registered")

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Hand back what is held and end; a failure here costs the lease time, nothing else."""
        self._heartbeat.stop()
        if self._abandoned:
            return
        with suppress(psycopg.Error, PgPipelineError):
            self._db.rows("select pipeline.stop_worker(%s)", (self.id,))

    def abandon(self) -> None:
        """From here on as if the process were dead, since what does its work is: nothing is handed back, so what it
        holds is lost after the grace, suspect, and then runs alone."""
        self._abandoned = True
        self._heartbeat.stop()

    @property
    def held(self) -> list[Lease]:
        return self._heartbeat.held

    @property
    def last_beat(self) -> float:
        """`time.monotonic()` of the last beat that Postgres took."""
        return self._heartbeat.last_beat

    def wait(self, timeout: float) -> bool:
        """Wait until there may be work: a notification, or a beat that saw some. A hint, so ask now and then anyway."""
        woken = self._heartbeat.woken.wait(timeout)
        self._heartbeat.woken.clear()
        return woken

    def claim(
        self,
        limit: int = 1,
        *,
        execution: str | None = None,
        kind: str = "batch",
        batches: Sequence[int] | None = None,
        claim_id: UUID | None = None,
    ) -> list[Lease]:
        """Up to `limit` leases, of anything this worker declared, or of one named execution."""
        claim_id = claim_id or uuid4()
        self._heartbeat.pending(claim_id)
        leases: list[Lease] = []
        try:
            rows = self._db.rows(
                "select * from pipeline.claim(%s, %s, %s, %s, %s, %s, %s)",
                (self.id, claim_id, limit, self._last_tenant, execution, kind, _list(batches)),
            )
            leases = [made(Lease, row) for row in rows]
        finally:
            self._heartbeat.hold(claim_id, leases)
        if leases:
            self._last_tenant = leases[-1].tenant
        return leases

    def files(self, lease: Lease) -> list[BatchFile]:
        rows = self._db.rows("select * from pipeline.batch_files(%s, %s)", (lease.execution_id, lease.batch))
        return [made(BatchFile, row) for row in rows]

    def pin_schema(self, pipeline: str, schema: str | None) -> str | None:
        """The pipeline's pinned schema; `schema` becomes it where there was none. None only asks."""
        pinned: str | None = self._db.value("select pipeline.pin_schema(%s, %s)", (pipeline, schema))
        return pinned

    def note_output(self, lease: Lease, sink: str, location: JSON) -> None:
        """Say where this attempt is about to write, so that the reaper can discard it; fenced."""
        noted = self._db.value(
            "select pipeline.note_output(%s, %s, %s, %s)", (lease.task_id, lease.token, sink, Jsonb(location))
        )
        if not noted:
            raise LeaseLost(f"{lease} went to another worker before it could write: this attempt is over.")

    def finish(self, lease: Lease, result: Any = None, publish: Publish | None = None) -> Finished:
        """Result, barrier, callback and ack in one transaction with what `publish` does; LeaseLost changes nothing."""
        outcome = self.finish_many([Finish(lease, result, publish)])[0]
        if isinstance(outcome, Finished):
            return outcome
        raise outcome

    def finish_many(self, finishes: Sequence[Finish]) -> list[Finished | Exception]:
        """Settle together; one entry that is lost, can't publish or has a bad result does not sink the others."""
        outcomes: dict[UUID, Finished | Exception] = {}
        together = True
        for item in finishes:
            self._heartbeat.settling(item.lease)
        try:
            while remaining := [item for item in finishes if item.lease.token not in outcomes]:
                group = remaining if together else remaining[:1]
                try:
                    outcomes.update(self._db.write(lambda conn, items=group: self._finish(conn, items)))  # type: ignore[misc]
                except (PgPipelineError, psycopg.Error) as error:
                    named = _named_tokens(error) & {item.lease.token for item in group}
                    if named and isinstance(error, PgPipelineError):
                        outcomes.update({token: type(error)(str(error)) for token in named})
                    elif not _of_one_entry(error):
                        raise
                    elif len(group) > 1:
                        together = False  # somebody's own trouble, such as a constraint checked at commit: each alone
                    else:
                        outcomes[group[0].lease.token] = error
            failpoints.hit("finish.after_commit")
        finally:
            for item in finishes:
                settled = isinstance(outcomes.get(item.lease.token), Finished | LeaseLost)
                (self._heartbeat.drop if settled else self._heartbeat.keep)(item.lease)
        for item in finishes:
            if isinstance(outcomes[item.lease.token], LeaseLost):
                self._let_go(item.lease)
        return [outcomes[item.lease.token] for item in finishes]

    def _let_go(self, lease: Lease) -> None:
        """Take a lost lease's task out of the way; failing costs the lease time, and must not hide what finished."""
        with suppress(psycopg.Error, PgPipelineError):
            self._db.rows("select pipeline.release(%s, %s, %s)", (lease.task_id, lease.token, "its execution ended"))

    def _finish(self, conn: Connection, items: Sequence[Finish]) -> dict[UUID, Finished | Exception]:
        outcomes: dict[UUID, Finished | Exception] = {}
        live = {
            row["lock_leases"] for row in conn.execute("select pipeline.lock_leases(%s, %s)", _ids(items)).fetchall()
        }
        failpoints.hit("finish.after_lock")
        for item in items:
            if item.publish is None or item.lease.task_id not in live:
                continue
            try:
                with conn.transaction():
                    item.publish(conn)
            except Exception as error:
                if conn.closed:  # by whatever name: the whole finish is asked again, or fails
                    raise psycopg.OperationalError(f"the connection was lost while {item.lease} published") from error
                outcomes[item.lease.token] = error  # this batch's own trouble, handed to its owner below
        failpoints.hit("finish.after_publish")
        settled = [item for item in items if item.lease.token not in outcomes]
        if settled:
            rows = conn.execute(
                "select * from pipeline.finish(%s, %s, %s)",
                (*_ids(settled), [Jsonb(result_json(item.result)) for item in settled]),
            ).fetchall()
            by_token = {item.lease.token: item.lease for item in settled}
            for row in rows:
                lease = by_token[row["token"]]
                if row["outcome"] == "committed":
                    outcomes[lease.token] = Finished(lease, row["result"], row["callback"])
                else:
                    outcomes[lease.token] = LeaseLost(_lost(lease, row["outcome"]))
        failpoints.hit("finish.before_commit")
        return outcomes

    def finish_and_claim(
        self, lease: Lease, result: Any = None, limit: int = 1, *, claim_id: UUID | None = None
    ) -> tuple[Finished, list[Lease]]:
        """Finish this and claim the next: one round trip, one commit. For work that publishes nothing."""
        claim_id = claim_id or uuid4()
        leases: list[Lease] = []
        finish = ([lease.task_id], [lease.token], [Jsonb(result_json(result))])
        self._heartbeat.pending(claim_id)
        self._heartbeat.settling(lease)
        try:
            answer = self._db.value(
                "select pipeline.finish_and_claim(%s, %s, %s, %s, %s, %s, %s)",
                (*finish, self.id, claim_id, limit, self._last_tenant),
            )
            leases = [Lease.of_json(row) for row in answer["leases"]]
            self._heartbeat.drop(lease)
        finally:
            self._heartbeat.keep(lease)
            self._heartbeat.hold(claim_id, leases)
        (row,) = answer["finished"]
        if row["outcome"] != "committed":
            for extra in leases:
                self.release(extra, "claimed with a finish that was lost")
            raise LeaseLost(_lost(lease, row["outcome"]))
        if leases:
            self._last_tenant = leases[-1].tenant
        return Finished(lease, row["result"], row["callback"]), leases

    def fail(
        self,
        lease: Lease,
        error: BaseException | str,
        *,
        retryable: bool = True,
        reason: str = "error",
        finishing: bool = False,
    ) -> Failed:
        """Back off and hand back, or a dead letter. `finishing`: the work was done, and its finish failed."""
        kind = type(error).__qualname__ if isinstance(error, BaseException) else reason
        kind = f"{kind} at finish" if finishing else kind
        text = str(error) or kind
        answer = self._settle(
            lease,
            "select pipeline.fail(%s, %s, %s, %s, %s, %s)",
            (lease.task_id, lease.token, clean(kind), clean(text), retryable, clean(reason)),
            "failed",
        )
        return Failed(answer.get("retry_at"), answer.get("dead_letter"))

    def release(self, lease: Lease, why: str | None = None) -> None:
        """Hand it back uncounted."""
        self._settle(
            lease, "select pipeline.release(%s, %s, %s)", (lease.task_id, lease.token, clean(why or "")), "released"
        )

    def _settle(self, lease: Lease, statement: str, parameters: Sequence[Any], expected: str) -> dict[str, Any]:
        self._heartbeat.settling(lease)
        try:
            answer: dict[str, Any] = self._db.value(statement, parameters)
        except BaseException:
            self._heartbeat.keep(lease)
            raise
        self._heartbeat.drop(lease)
        if answer["outcome"] != expected:
            raise LeaseLost(_lost(lease, answer["outcome"]))
        return answer

    def claim_or_wait(self, limit: int, *, timeout: float, poll: float = 0.5) -> list[Lease]:
        """Claim; with nothing there, wait for a wake-up or poll until `timeout` has passed."""
        until = time.monotonic() + timeout
        while not (leases := self.claim(limit)) and (left := until - time.monotonic()) > 0:
            self.wait(min(poll, left))
        return leases


def _ids(items: Sequence[Finish]) -> tuple[list[int], list[UUID]]:
    return [item.lease.task_id for item in items], [item.lease.token for item in items]


def _lost(lease: Lease, outcome: str) -> str:
    how = "went to another worker" if outcome == "lost" else f"was {outcome} before"
    return f"{lease} {how}: nothing of this attempt became visible, and there is nothing to do."


def _named_tokens(error: Exception) -> set[UUID]:
    cause = error.__cause__
    if not isinstance(error, LeaseLost | InvalidInput) or not isinstance(cause, psycopg.Error):
        return set()
    detail = cause.diag.message_detail if (cause.sqlstate or "").startswith("PP") else None
    return {UUID(token) for token in json.loads(detail or "[]")}


def _of_one_entry(error: Exception) -> bool:
    """Whether Postgres refused what some entry wrote: its data, a constraint, a deadlock of its publish, or an error
    that a trigger raised; not a connection, a full disk or a timeout, which would meet every entry."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    state = (cause.sqlstate if isinstance(cause, psycopg.Error) else None) or ""
    return state[:2] in ("22", "23", "40", "P0")


def _list(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
