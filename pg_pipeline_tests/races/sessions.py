"""Sessions that race: lined up on a barrier, or one seen waiting for the other in pg_stat_activity."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row

from pg_pipeline.coordination.database import Database, typed
from pg_pipeline_tests.coordination.conftest import HandWorker
from pg_pipeline_tests.helpers import wait_until

Row = dict[str, Any]


class Session(HandWorker):
    """One connection and one thread: calls can be left waiting while the test goes on. Once registered it is a worker
    by hand, on this connection."""

    def __init__(self, dsn: str) -> None:
        self.db = self  # type: ignore[assignment]
        self.id = uuid4()
        self._conn = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self._observer = psycopg.connect(dsn, autocommit=True)
        self._thread = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._observer.execute("select pg_terminate_backend(%s)", (self._conn.info.backend_pid,))
        self._thread.shutdown()
        self._conn.close()
        self._observer.close()

    # Calls

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        try:
            found = self._conn.execute(statement.encode(), parameters)
        except psycopg.Error as error:
            raise typed(error) from error
        return found.fetchall() if found.description else []

    def value(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        rows = self.rows(statement, parameters)
        return next(iter(rows[0].values())) if rows else None

    def begin(self) -> None:
        self.rows("begin")

    def commit(self) -> None:
        self.rows("commit")

    def rollback(self) -> None:
        self.rows("rollback")

    def start(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Make the call in this session's thread; `seen_waiting` says when it waits for a lock."""
        return self._thread.submit(call, *arguments, **options)

    def seen_waiting(self, call: Future[Any]) -> None:
        """Return when Postgres says that this session waits for a lock, and the call has not come back."""

        def waits() -> bool:
            assert not call.done(), f"it did not wait: {call.exception() or call.result()!r}"
            row = self._observer.execute(
                "select wait_event_type from pg_stat_activity where pid = %s", (self._conn.info.backend_pid,)
            ).fetchone()
            return row == ("Lock",)

        wait_until(waits, timeout=10, what="the session to wait for a lock")

    def register(self, **declared: Any) -> Session:
        self.rows(
            "select pipeline.register_worker(%s, %s, 'hand', %s, %s, null, false)",
            (self.id, declared.get("queue", "default"), declared.get("pipelines"), declared.get("kinds")),
        )
        return self

    def vanish(self) -> None:
        """From now on this worker counts as gone, whatever the clock says."""
        self._observer.execute("update pipeline.worker set stopped_at = now() where id = %s", (self.id,))


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Every call in a thread of its own, let go at the same moment; its value, or its exception."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait(timeout=30)
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the outcome is what the test looks at
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return [outcome.result(timeout=60) for outcome in [pool.submit(run, call) for call in calls]]


def dead_letter(db: Database, one: Session) -> int:
    """Claim the next task and bury it; gives the letter."""
    (lease,) = one.claim()
    letter: int = one.fail(lease, retryable=False)["dead_letter"]
    return letter


def drain(one: Session, db: Database) -> int:
    """Finish whatever there is, callbacks too; gives how many tasks that were."""
    done = 0
    while leases := one.claim(100):
        one.finish(*leases)
        done += len(leases)
    return done


def callbacks(db: Database, execution: str) -> int:
    """How many callback tasks of an execution there are or were, by any trace they leave."""
    return int(
        db.value(
            """select count(distinct id) from (
                 select t.id from pipeline.task t join pipeline.lane l on l.id = t.lane_id
                 join pipeline.execution x on x.id = t.execution_id where x.key = %(x)s and l.kind = 'callback'
                 union all
                 select a.task_id from pipeline.attempt a join pipeline.execution x on x.id = a.execution_id
                 where x.key = %(x)s and a.kind = 'callback'
                 union all
                 select d.task_id from pipeline.dead_letter d join pipeline.execution x on x.id = d.execution_id
                 where x.key = %(x)s and d.kind = 'callback') seen(id)""",
            {"x": execution},  # type: ignore[arg-type]
        )
    )


def places(db: Database, execution: str) -> dict[str, int]:
    """How many of its files are where (P1)."""
    rows = db.rows(
        "select place, count(*) as n from pipeline.file_status where execution = %s group by place", (execution,)
    )
    return {row["place"]: row["n"] for row in rows}
