"""A large load against the real coordination layer, with Spark's work stubbed by its measured time: `make simulate`.

python -m benchmarks.simulation [--seconds 30] [--batch-seconds 4] [--hourly 1000000 64000000]

A process submits a second's files every second; worker processes claim, wait as long as Spark works on a batch, and
finish. Time is real and the window short: what is said of an hour is the window's rate. Before it, what each thing
costs alone is measured (benchmarks/sizing.py). Kept in benchmarks/results/simulation.json; docs/scaling.md is made of
it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from benchmarks.database import Server, server
from benchmarks.harness import Run, keep, surroundings
from benchmarks.sizing import BATCH, Meter, sizes
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish, Lease
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker

WORKERS = 2
GROUP = 100  # leases of a claim, finishes of a call

WAITS = """
select count(*) as batches, coalesce(percentile_cont(0.5) within group (order by w.s), 0) as p50,
  coalesce(percentile_cont(0.99) within group (order by w.s), 0) as p99
from pipeline.attempt a join pipeline.execution x on x.id = a.execution_id
cross join lateral (select extract(epoch from a.claimed_at - x.sealed_at)::float8 as s) w
where a.kind = 'batch' and a.outcome = 'committed'
"""
LEFT = "select count(*) from pipeline.task t join pipeline.lane l on l.id = t.lane_id where l.kind = 'batch'"


def submits(dsn: str, hourly: int, seconds: float) -> dict[str, float]:
    """A second's files every second; late when Postgres is."""
    late, cpu = 0.0, time.process_time()
    with Database(dsn) as db:
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(hourly / 3600 * (int(passed) + 1)) - sent
            folder = uuid4().hex

            def listed(folder: str = folder, due: int = due) -> Iterator[FileVersion]:
                return (FileVersion(f"/in/{folder}/{number:09}.json", "1", 1_000_000) for number in range(due))

            if due > 0:
                submission.submit(db, "bench", listed, request_key=folder, request=folder)
                sent += due
            ahead = int(passed) + 1 - (time.monotonic() - began)
            late = max(late, -ahead)
            time.sleep(max(0.0, ahead))
    return {"files": sent, "late": round(late, 2), "cpu": time.process_time() - cpu}


def works(dsn: str, slots: int, batch_seconds: float, seconds: float) -> dict[str, float]:
    """As many leases as slots; each is finished when Spark would be."""
    cpu, done, most = time.process_time(), 0, 0
    running: list[tuple[float, str, Lease]] = []
    with Database(dsn) as db, Worker(db) as worker:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if free := min(GROUP, slots - len(running)):
                for lease in worker.claim(free):
                    took = batch_seconds if lease.kind == "batch" else 0.0
                    heapq.heappush(running, (time.monotonic() + took, str(lease.token), lease))
            most = max(most, len(running))
            due = []
            while running and running[0][0] <= time.monotonic() and len(due) < GROUP:
                due.append(heapq.heappop(running)[2])
            outcomes = worker.finish_many([Finish(one, {"rows_in": 1, "rows_out": 1}) for one in due]) if due else []
            assert not [one for one in outcomes if isinstance(one, Exception)], outcomes
            done += sum(one.kind == "batch" for one in due)
            if not due:
                worker.wait(min(0.1, max(0.0, running[0][0] - time.monotonic())) if running else 0.1)
    return {"batches": done, "slots": most, "cpu": time.process_time() - cpu}


def replay(made: Server, hourly: int, seconds: float, batch_seconds: float) -> dict[str, Any]:
    dsn = made.migrated()
    slots = int(hourly / 3600 / BATCH * batch_seconds * 1.5 / WORKERS) + 1
    with Database(dsn) as db:
        submission.register_pipeline(db, "bench", batch_files=BATCH)
        given = [("submits", hourly, seconds)] + [
            ("works", slots, batch_seconds, seconds + batch_seconds + 1)
        ] * WORKERS
        meter = Meter(made, db)
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.simulation", "--child", what, dsn, json.dumps(arguments)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for what, *arguments in given
        ]
        outputs = [child.communicate()[0] for child in children]
        assert not any(child.returncode for child in children), "a process of the simulation failed"
        found = [json.loads(output) for output in outputs]
        spent = meter.spent()
        waits = db.rows(WAITS)[0]
        waiting = db.value(LEFT)
    files = found[0]["files"]
    return {
        "hourly": hourly,
        "submitted": files,
        "batches_committed": waits["batches"],
        "batches_left": waiting,
        "submit_late_seconds": found[0]["late"],
        "wait_p50_ms": round(1000 * waits["p50"], 1),
        "wait_p99_ms": round(1000 * waits["p99"], 1),
        "slots_busy": int(sum(one["slots"] for one in found[1:])),
        "cores_of_postgres": round(spent["cpu"] / seconds, 3),
        "cores_of_ours": round(sum(one["cpu"] for one in found) / seconds, 3),
        "wal_mb_a_second": round(spent["wal"] / seconds / 2**20, 2),
        # Behind by less than three seconds' work at the end is keeping up.
        "kept_up": waiting <= 3 * hourly / 3600 / BATCH + 1 and found[0]["late"] < 3,
    }


def measure(run: Run, hourly: list[int], seconds: float, batch_seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        made = stack.enter_context(server(run.embedded))
        alone = sizes(made, run.of(2_000, 20_000, 100_000))
        steps = []
        for one in hourly:
            steps.append(replay(made, one, seconds, batch_seconds))
            print(steps[-1], flush=True)
        return {"seconds": seconds, "batch_seconds": batch_seconds, "sizes": alone, "steps": steps,
                "about": {"postgres": made.settings()}}  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(prog="benchmarks.simulation", description=__doc__)
    asked.add_argument("--hourly", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000, 64_000_000])
    asked.add_argument("--seconds", type=float, default=30)
    asked.add_argument("--batch-seconds", type=float, default=4, help="what Spark takes for a batch")
    asked.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.child:
        what, dsn, arguments = given.child
        print(json.dumps({"submits": submits, "works": works}[what](dsn, *json.loads(arguments))))
        return
    about = surroundings()
    found = measure(Run("full", 1, False, 7), given.hourly, given.seconds, given.batch_seconds)
    found["about"] = {**about, **found["about"]}
    print(keep("simulation", found))


if __name__ == "__main__":
    main()
