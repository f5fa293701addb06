"""Goal 8. Many batches of one execution settle and fire one callback: every finish writes the execution's one row.

`lease` is the plain lease of claim_finish.py, whose counter is such a row, too, without a callback.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from benchmarks.claim_finish import MAKE, drained, fill, register
from benchmarks.database import server
from benchmarks.harness import Case, Check, Result, Run

FIRED = "select count(*) from pipeline.execution where state = 'finished'"


def measure(run: Run) -> Result:
    count = run.of(100, 1000, 10_000)
    with server(run.embedded) as made:
        own, other = made.migrated(), made.new()
        register(own)
        with psycopg.connect(other, autocommit=True) as conn:
            conn.execute(MAKE.encode())

        def settled(way: str, n: int, workers: int) -> float:
            """Batches a second, to the end of the execution."""
            dsn = own if way == "ours" else other
            fill(dsn, way, count, executions=1)
            with psycopg.connect(dsn, autocommit=True) as conn:
                if way != "ours":
                    return drained(dsn, way, n, workers, count)
                (before,) = conn.execute(FIRED.encode()).fetchone() or (0,)
                rate = drained(dsn, way, n, workers, count + 1)  # the callback is a task, too
                while drained(dsn, way, n, 1, 1):  # made when the others had gone home
                    pass
                (after,) = conn.execute(FIRED.encode()).fetchone() or (0,)
                assert after == before + 1, "one callback, and the execution is over"
                return rate

        cases = []
        for n in run.of([10], [10], [1, 10, 100]):
            ways: dict[str, Callable[[], float]] = {
                f"{way}, {workers} workers": (lambda way=way, n=n, workers=workers: settled(way, n, workers))  # type: ignore[misc]
                for way in ("ours", "lease")
                for workers in (2, 8)
            }
            print(f"{count:,} batches, {n} a trip; batches a second:", flush=True)
            cases.append(Case(f"{n} a trip", "batches/s", run.interleaved(ways)))
        about = {"postgres": made.settings()}
    checks = [
        Check(f"8 workers to 2, {c.name}", c.ratio("ours, 8 workers", "ours, 2 workers"), 1, "at least", "×")
        for c in cases
    ]
    left_out = [
        "A barrier with one callback: the peers have none, but for chancy's workflows and DBOS's parents, which wait "
        "for each child by itself."
    ]
    return Result(8, "Fan-in", cases, checks, left_out=left_out, about=about)
