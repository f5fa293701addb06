"""Goal 3. How long a claim takes when few tasks wait, when very many do, and when very many are finished.

Three databases of the same server, asked in turn: a thousand waiting; a million waiting; a thousand waiting and a
million finished. PGMQ beside it, where a message that was read is deleted and so nothing finished is left.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.claim_finish import drained, register, submit
from benchmarks.database import server
from benchmarks.harness import Case, Check, Result, Run
from benchmarks.peers import LEFT_OUT, peer

FEW = 1000
AT_ONCE = 50_000


def fill(dsn: str, count: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for first in range(0, count, AT_ONCE):
            submit(conn, min(AT_ONCE, count - first))


def settle(dsn: str) -> None:
    """As autovacuum would, had it the time."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("vacuum analyze pipeline.task, pipeline.batch, pipeline.execution, pipeline.attempt")


class Claimer:
    """Claims ten at a time and finishes them untimed, then submits as many again."""

    def __init__(self, dsn: str) -> None:
        self.conn: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        self.worker = uuid4()
        self.conn.execute("select pipeline.register_worker(%s, 'default', 'bench')", (self.worker,))

    def latency(self, claims: int) -> float:
        took = []
        for _ in range(claims):
            began = time.perf_counter()
            claim = "select task_id, token from pipeline.claim(%s, %s, 10)"
            rows = self.conn.execute(claim, (self.worker, uuid4())).fetchall()
            took.append((time.perf_counter() - began) * 1000)
            done = ([row[0] for row in rows], [row[1] for row in rows], ["{}"] * len(rows))
            self.conn.execute("select 1 from pipeline.finish(%s, %s, %s::jsonb[])", done)
            self.conn.execute("select pipeline.beat(%s, '{}', '{}')", (self.worker,))
        submit(self.conn, claims * 10)
        return statistics.median(took)

    def close(self) -> None:
        self.conn.close()


def measure(run: Run) -> Result:
    many, claims = run.of(2000, 50_000, 1_000_000), run.of(3, 30, 60)
    with server(run.embedded) as made, ExitStack() as stack:
        shallow = made.migrated()
        register(shallow)
        deep, finished = made.copy(shallow), made.copy(shallow)
        work = [threading.Thread(target=fill, args=(dsn, count)) for dsn, count in
                ((shallow, FEW), (deep, many), (finished, many))]  # fmt: skip
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        drained(finished, "ours", 1000, 2, many)
        fill(finished, FEW)
        names = {"1,000 waiting": shallow, f"{many:,} waiting": deep, f"{many:,} finished": finished}
        claimers = {}
        for name, dsn in names.items():
            settle(dsn)
            claimers[name] = Claimer(dsn)
            stack.callback(claimers[name].close)
            claimers[name].latency(3)
        ways: dict[str, Callable[[], float]] = {
            name: (lambda one=one: one.latency(claims)) for name, one in claimers.items()
        }
        print("claims of ten, milliseconds:", flush=True)
        cases = [Case("claim of ten", "ms", run.interleaved(ways, max(run.rounds, 5)))]
        if run.peers:
            cases.append(_pgmq(run, made.new(), made.new(), many, claims, stack))
        about = {"postgres": made.settings()}
    case = cases[0]
    checks = [
        Check(f"claim with {name}, to 1,000 waiting", case.ratio(name, "1,000 waiting"), 1.5, "at most", "×")
        for name in case.ways[1:]
    ]
    return Result(3, "Depth", cases, checks, left_out=LEFT_OUT, about=about)


def _pgmq(run: Run, few: str, most: str, many: int, claims: int, stack: ExitStack) -> Case:
    queues: dict[str, Any] = {"1,000 waiting": peer("pgmq", few), f"{many:,} waiting": peer("pgmq", most)}

    def latency(queue: Any) -> float:
        took = []
        for _ in range(claims):
            began = time.perf_counter()
            ids = queue.read(10)
            took.append((time.perf_counter() - began) * 1000)
            queue.delete(ids)
        queue.enqueue(claims * 10)
        return statistics.median(took)

    for queue, count in zip(queues.values(), (FEW, many), strict=True):
        stack.callback(queue.close)
        queue.enqueue(count)
    ways = {name: (lambda queue=queue: latency(queue)) for name, queue in queues.items()}
    print("PGMQ, reads of ten, milliseconds:", flush=True)
    return Case("PGMQ, read of ten", "ms", run.interleaved(ways, max(run.rounds, 5)))
