"""Goal 9. What coordination costs per file, and in memory, from a thousand files to a million.

The submitting and the working process are processes of their own: batches of a hundred files, ten leases at a time.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from benchmarks.database import server
from benchmarks.harness import Case, Check, Result, Run
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker

SMALL = 1000


def child(what: str, dsn: str, files: int, times: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", what, dsn, str(files), str(times)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def submit(dsn: str, files: int, times: int) -> None:
    folder = uuid4().hex

    def listed() -> Iterator[FileVersion]:
        return (FileVersion(f"/in/{folder}/{number:09}.json", "1", 1000) for number in range(files))

    with Database(dsn) as db:
        for _ in range(times):
            folder = uuid4().hex
            submission.submit(db, "bench", listed, request_key=folder, request=folder)


def work(dsn: str, files: int, times: int) -> None:
    left = times * (files // 100)
    with Database(dsn) as db, Worker(db) as worker:
        while left > 0:
            leases = worker.claim(10)
            outcomes = worker.finish_many([Finish(lease, {"rows_in": 1, "rows_out": 1}) for lease in leases])
            assert not [one for one in outcomes if isinstance(one, Exception)], outcomes
            left -= sum(lease.kind == "batch" for lease in leases)
        while leases := worker.claim(10):  # callbacks
            worker.finish_many([Finish(lease) for lease in leases])


def measure(run: Run) -> Result:
    small, large, times = run.of((200, 1000, 1), (SMALL, 30_000, 5), (SMALL, 1_000_000, 20))
    memory: list[dict[str, float]] = []
    with server(run.embedded) as made:
        own = made.migrated()
        with Database(own) as db:
            submission.register_pipeline(db, "bench", batch_files=100)

        def cost(files: int, times: int) -> float:
            """Microseconds a file."""
            found = {what: child(what, own, files, times) for what in ("submit", "work")}
            memory.append({f"{what}, {files:,} files": found[what]["megabytes"] for what in found})
            return 1e6 * sum(one["seconds"] for one in found.values()) / (files * times)

        cost(small, 1)  # plans and caches
        memory.clear()
        print("microseconds a file:", flush=True)
        names = (f"{small:,} files", f"{large:,} files")
        ways: dict[str, Any] = {names[0]: lambda: cost(small, times), names[1]: lambda: cost(large, 1)}
        rounds = run.interleaved(ways)
        about = {"postgres": made.settings()}
    pairs = [memory[n] | memory[n + 1] for n in range(0, len(memory), 2)]
    held = [{key: pair[key] for key in sorted(pair)} for pair in pairs]
    cases = [Case("cost of a file", "µs", rounds), Case("most memory", "MB", held)]
    checks = [
        Check(f"cost of a file: {names[1]} to {names[0]}", cases[0].ratio(names[1], names[0]), 1.2, "at most", "×")
    ] + [
        Check(f"memory of the process that {verb}s: {names[1]} to {names[0]}",
              cases[1].ratio(f"{verb}, {names[1]}", f"{verb}, {names[0]}"), 1.2, "at most", "×")
        for verb in ("submit", "work")
    ]  # fmt: skip
    return Result(9, "Growth", cases, checks, left_out=["The peers keep no ledger of files."], about=about)


def main() -> None:
    what, dsn, files, times = sys.argv[1:]
    began = time.perf_counter()
    {"submit": submit, "work": work}[what](dsn, int(files), int(times))
    took = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": took, "megabytes": round(most, 1)}))


if __name__ == "__main__":
    main()
