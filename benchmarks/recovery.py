"""Goal 6. From `kill -9` of a worker to its batch in another's hands.

`ours`    direct connections: the dead worker's session lock is gone, and its last beat is older than the grace.
`pooler`  behind PgBouncer in transaction mode, where lease time alone decides.
`limit`   a row lock that the killed process held in an open transaction: all that Postgres itself does.
`pgmq`    a message comes back when its visibility timeout is over; it is set to the lease time of `pooler`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from benchmarks.claim_finish import MAKE, STATEMENTS, fill, register
from benchmarks.database import server
from benchmarks.harness import Case, Check, Result, Run, percentile
from benchmarks.peers import LEFT_OUT, peer
from benchmarks.pooler import pooled
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker

LEASE = 3  # seconds, behind the pooler
WAIT = 1.0  # as a worker run does
AT_ONCE = 5


@contextmanager
def victims(way: str, dsn: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that hold a task each."""
    command = [sys.executable, "-m", "benchmarks.recovery", way, dsn]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "holds\n", "a victim died by itself"
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


def killed(one: subprocess.Popen[str], claimed: Callable[[], bool], wait: Callable[[], object]) -> float:
    began = time.monotonic()
    one.kill()
    while not claimed():
        wait()
        assert time.monotonic() < began + 60, "nobody got it"
    return time.monotonic() - began


def ours(dsn: str, count: int, through: str) -> list[float]:
    """`through` is where the workers connect: directly, or to a pooler."""
    took = []
    way = "ours" if through == dsn else "pooler"
    for first in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - first)
        fill(dsn, "ours", some, executions=1)
        with (
            victims(way, through, some) as held,
            Database(through) as db,
            Worker(db, pooled=way == "pooler") as worker,
        ):

            def claimed(worker: Worker = worker) -> bool:
                leases = worker.claim(1)
                for lease in leases:
                    worker.finish(lease)
                return any(lease.kind == "batch" for lease in leases)

            def wait(worker: Worker = worker) -> None:
                worker.wait(WAIT)

            took += [killed(one, claimed, wait) for one in held]
            while leases := worker.claim(1):
                worker.finish(leases[0])
    return took


def limit(dsn: str, count: int) -> list[float]:
    took = []
    for first in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - first)
        fill(dsn, "limit", some)
        with victims("limit", dsn, some) as held, psycopg.connect(dsn, autocommit=True) as conn:

            def claimed(conn: psycopg.Connection[Any] = conn) -> bool:
                return bool(conn.execute(STATEMENTS["limit"].encode(), {"n": 1}).fetchall())

            took += [killed(one, claimed, lambda: time.sleep(0.01)) for one in held]
    return took


def pgmq(queue: Any, dsn: str, count: int) -> list[float]:
    took = []
    for first in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - first)
        queue.enqueue(some)
        with victims("pgmq", dsn, some) as held:

            def claimed() -> bool:
                ids = queue.read(1)
                if ids:
                    queue.delete(ids)
                return bool(ids)

            took += [killed(one, claimed, lambda: time.sleep(0.01)) for one in held]
    return took


def measure(run: Run) -> Result:
    count = run.of(1, 3, 25)
    with server(run.embedded) as made, ExitStack() as stack:
        own, other = made.migrated(), made.new()
        register(own)
        with psycopg.connect(other, autocommit=True) as conn:
            conn.execute(MAKE.encode())
        ways: dict[str, Callable[[], list[float]]] = {
            "ours": lambda: ours(own, count, own), "limit": lambda: limit(other, count)}  # fmt: skip
        left_out = list(LEFT_OUT)
        behind = made.migrated()
        register(behind)
        with Database(behind) as db:
            submission.configure_queue(db, "default", lease=f"{LEASE} s")
        through = stack.enter_context(pooled(made.embedded, behind)) if run.size != "tiny" else None
        if through:
            ways["pooler"] = lambda: ours(behind, count, through)
        else:
            left_out.append("Behind a pooler: there is no PgBouncer here.")
        if run.peers:
            address = made.new()
            queue: Any = peer("pgmq", address)
            stack.callback(queue.close)
            ways["pgmq"] = lambda: pgmq(queue, address, count)
        found: dict[str, list[float]] = {name: [] for name in ways}

        def timed(name: str) -> float:
            took = ways[name]()
            found[name] += took
            return max(took)

        print(f"{count} killed a round; the longest, seconds:", flush=True)
        rounds = run.interleaved({name: (lambda name=name: timed(name)) for name in ways})  # type: ignore[misc]
        about = {"postgres": made.settings(), "lease": LEASE, "killed": {name: len(found[name]) for name in found}}
    p99 = {name: percentile(took, 0.99) for name, took in found.items()}
    middle = {name: percentile(took, 0.5) for name, took in found.items()}
    cases = [Case("the longest of a round", "s", rounds), Case("p50", "s", [middle]), Case("p99", "s", [p99])]
    checks = [Check("p99, direct connections", p99["ours"], 2, "at most", " s")]
    if "pooler" in p99:
        checks.append(Check(f"p99 behind a pooler, lease {LEASE} s", p99["pooler"], LEASE + 1, "at most", " s"))
    return Result(6, "Recovery", cases, checks, left_out=left_out, about=about)


def main() -> None:
    """Hold a task until killed."""
    way, dsn = sys.argv[1:]
    with ExitStack() as stack:
        if way in ("ours", "pooler"):
            db = stack.enter_context(Database(dsn))
            worker = stack.enter_context(Worker(db, kinds=["batch"], pooled=way == "pooler"))
            assert worker.claim(1)
        elif way == "limit":
            conn = stack.enter_context(psycopg.connect(dsn))
            assert conn.execute(STATEMENTS["limit"].encode(), {"n": 1}).fetchall()
        else:
            from benchmarks.peers.pgmq import Queue

            assert Queue(dsn, install=False).read(1, vt=LEASE)
        print("holds", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
