"""After a death: go on, then look whether anything was lost, doubled or told twice."""

from __future__ import annotations

import json
import signal
from typing import Any

import psutil

from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.coordination.conftest import audit
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.helpers import ChildProcess, wait_until


def killed(process: ChildProcess) -> None:
    """It must have met its failpoint, not have ended by itself."""
    assert process.wait() == -signal.SIGKILL, (process.stdout, process.stderr)


def stopped(process: ChildProcess) -> None:
    def is_stopped() -> bool:
        assert process.alive, (process.stdout, process.stderr)
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)

    wait_until(is_stopped, what="the process to stop at its failpoint")


def go_on(db: Database) -> None:
    """Another worker takes over, until the queue is empty."""

    def empty() -> bool:
        actor.drain(db, tolerant=True)
        return bool(db.value("select count(*) from pipeline.task") == 0)

    wait_until(empty, what="the queue to be worked off")


def whole(db: Database, *, state: str = "finished") -> None:
    """Nothing lost, nothing doubled, callbacks and their effects once, audit clean."""
    assert audit(db) == []
    assert [row["state"] for row in db.rows("select state from pipeline.execution where state <> %s", (state,))] == []
    assert not db.rows("select id from pipeline.dead_letter where resolution is null")
    shown = sorted(row["path"] for row in db.rows("select path from public.sink"))
    assert shown == paths(db, "committed")
    called = db.rows(
        """select x.key, g.n, count(a.token) from pipeline.execution x cross join generate_series(1, x.generation) g(n)
           left join pipeline.attempt a on a.execution_id = x.id and a.generation = g.n
             and a.kind = 'callback' and a.outcome = 'committed'
           where x.state = 'finished' and x.expected > 0 group by x.id, g.n having count(a.token) <> 1"""
    )
    assert called == []
    told = db.rows("select execution_id, generation, event from pipeline.outbox where destination = ''")
    assert len(told) == len({tuple(row.values()) for row in told}), told
    bills = [row for row in told if row["event"] == "bill"]
    assert len(bills) == outcomes(db, "callback").get("committed", 0)


def paths(db: Database, *states: str) -> list[str]:
    rows = db.rows("select path from pipeline.file_status where place = any(%s) order by path", (list(states),))
    return sorted(row["path"] for row in rows)


def outcomes(db: Database, kind: str = "batch") -> dict[str, int]:
    rows = db.rows("select outcome, count(*) as n from pipeline.attempt where kind = %s group by 1", (kind,))
    return {row["outcome"]: row["n"] for row in rows}


def answer(process: ChildProcess) -> Any:
    lines = [line for line in process.stdout.splitlines() if line.startswith("answer ")]
    return json.loads(lines[-1].removeprefix("answer ")) if lines else None


def leases(process: ChildProcess) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in process.stdout.splitlines() if line.startswith("lease ")]
