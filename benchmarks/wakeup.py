"""Goal 5. From sending a task to the moment a worker has it, at a hundred a second; and what an idle system costs.

Ours is a Worker that waits as `drain` of a worker run does: woken by a notification, and asking now and then anyway.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from psycopg.conninfo import conninfo_to_dict

from benchmarks.claim_finish import register
from benchmarks.database import Server, server
from benchmarks.harness import Case, Check, Result, Run, percentile
from benchmarks.peers import LEFT_OUT, peers
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish
from pg_pipeline.coordination.worker import Worker

RATE = 100
PADDING = "x" * 180
WAIT = 1.0  # as a worker run does


def ours(dsn: str, rate: float, count: int) -> list[float]:
    late: list[float] = []
    stop = threading.Event()
    with Database(dsn) as db, Database(dsn) as sender, Worker(db) as worker:

        def work() -> None:
            while not stop.is_set():
                leases = worker.claim(10)
                late.extend(time.time() - lease.payload["at"] for lease in leases)
                if leases:
                    worker.finish_many([Finish(lease) for lease in leases])
                else:
                    worker.wait(WAIT)

        thread = threading.Thread(target=work)
        thread.start()
        due = time.monotonic()
        for _ in range(count):
            payload: Any = {"at": time.time(), "padding": PADDING}
            (sent,) = submission.send(sender, "default", [{"key": uuid4().hex, "kind": "bench", "payload": payload}])
            assert sent.outcome == "created", sent
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        until = time.monotonic() + 60
        while len(late) < count and time.monotonic() < until:
            time.sleep(0.01)
        stop.set()
        thread.join()
    return late


def idle(made: Server, dsn: str, seconds: float) -> float:
    """The share of a core that a waiting worker process takes, its sessions in Postgres included, in percent."""

    name = str(conninfo_to_dict(dsn)["dbname"])

    def busy() -> float:
        sessions = [p.pid for p in psutil.Process(made.pid).children() if name in " ".join(p.cmdline())]
        # Not cpu_times, which counts in hundredths of a second: more than an idle second costs.
        threads = [thread for pid in (child.pid, *sessions) for thread in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    command = [sys.executable, "-m", "benchmarks.wakeup", dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(min(1.0, seconds))
        began, before = time.monotonic(), busy()
        time.sleep(seconds)
        used = 100 * (busy() - before) / (time.monotonic() - began)
        child.terminate()
    return max(used, 0.01)  # less than a tick of the clock is not nothing


def measure(run: Run) -> Result:
    count, seconds = run.of(20, 200, 2000), run.of(0.5, 5, 30)
    with server(run.embedded) as made, ExitStack() as stack:
        own = made.migrated()
        register(own)
        rivals = peers(made, stack) if run.peers else {}
        found: dict[str, list[list[float]]] = {}

        def timed(name: str) -> float:
            late = ours(own, RATE, count) if name == "ours" else rivals[name].wake(RATE, count)
            found.setdefault(name, []).append(late)
            return percentile(late, 0.5) * 1000

        print(f"{count} tasks, {RATE} a second; median milliseconds:", flush=True)
        ways: dict[str, Callable[[], float]] = {name: (lambda name=name: timed(name)) for name in ("ours", *rivals)}  # type: ignore[misc]
        p50 = run.interleaved(ways)
        p99 = [{name: percentile(found[name][n], 0.99) * 1000 for name in ways} for n in range(len(p50))]
        cost = [{"ours": idle(made, own, seconds)} for _ in range(run.rounds)]
        about = {"postgres": made.settings(), "rate": RATE}
    cases = [Case("p50", "ms", p50), Case("p99", "ms", p99), Case("an idle worker", "% of a core", cost)]
    checks = [
        Check("p50 from enqueue to claim", cases[0].median("ours"), 20, "at most", " ms"),
        Check("p99 from enqueue to claim", cases[1].median("ours"), 100, "at most", " ms"),
        Check("an idle worker and its sessions", cases[2].median("ours"), 1, "at most", " % of a core"),
    ]
    return Result(5, "Wake-up", cases, checks, left_out=LEFT_OUT, about=about)


def main() -> None:
    """A worker that waits, until it is ended."""
    with Database(sys.argv[1]) as db, Worker(db) as worker:
        print("waiting", flush=True)
        while True:
            assert not worker.claim(1)
            worker.wait(WAIT)


if __name__ == "__main__":
    main()
