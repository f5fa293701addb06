"""A steady load while somebody holds an old transaction open: does the rate hold, and do the tables stay bounded?

Executions of a hundred batches arrive at a steady rate; workers claim and finish them. After a quiet start a
transaction with a snapshot is opened and left. Each line is ten seconds. Run:
python -m benchmarks.held_horizon [--rate 500] [--before 20] [--held 90] [--workers 2] [--n 25]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from uuid import uuid4

import psycopg

from benchmarks.claim_finish import ours
from benchmarks.database import database

SIZES = """
select coalesce(sum(n_dead_tup), 0), pg_size_pretty(pg_total_relation_size('pipeline.task')) from pg_stat_user_tables
where schemaname = 'pipeline' and relname in ('task', 'execution', 'worker')
"""


def produce(dsn: str, rate: int, stop: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        due = time.monotonic()
        while not stop.is_set():
            paths = [f"/in/{uuid4()}" for _ in range(100)]
            conn.execute(
                "select pipeline.submit('bench', %s, %s, %s, %s)", (uuid4().hex, paths, ["1"] * 100, [1] * 100)
            )
            due += 100 / rate
            stop.wait(max(0.0, due - time.monotonic()))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    for name, value in {"rate": 500, "before": 20, "held": 90, "workers": 2, "n": 25}.items():
        arguments.add_argument(f"--{name}", type=int, default=value)
    given = arguments.parse_args()
    with database() as dsn:
        conn = psycopg.connect(dsn, autocommit=True)
        conn.execute("select pipeline.register_pipeline('bench', '{\"batch_files\": 1}')")
        stop = threading.Event()
        lock = threading.Lock()
        done, waits = [0], [[0.0]]

        def counted(rows: int, seconds: float) -> bool:
            with lock:
                done[0] += rows
                waits[0].append(seconds)
            if not rows:
                stop.wait(0.02)
            return stop.is_set()

        threads = [threading.Thread(target=produce, args=(dsn, given.rate, stop))]
        threads += [threading.Thread(target=ours, args=(dsn, given.n, counted)) for _ in range(given.workers)]
        for thread in threads:
            thread.start()
        holder = psycopg.connect(dsn)
        for second in range(10, given.before + given.held + 1, 10):
            stop.wait(10)
            with lock:
                rate, done[0] = done[0] / 10, 0
                claims, waits[0] = sorted(waits[0]), [0.0]
            if second == given.before:
                holder.execute("set transaction isolation level repeatable read")
                holder.execute("select count(*) from pipeline.task")
            dead, size = conn.execute(SIZES.encode()).fetchone() or (0, "")
            (waiting,) = conn.execute("select count(*) from pipeline.task where token is null").fetchone() or (0,)
            how = "held" if second > given.before else "free"
            print(
                f"{second:>4} s {how}: {rate:>6.0f} tasks/s, waiting {waiting:>6}, "
                f"claim p50 {statistics.median(claims) * 1000:>6.1f} ms, dead rows {dead:>8}, task table {size}",
                flush=True,
            )
        stop.set()
        for thread in threads:
            thread.join()
        holder.close()
        conn.close()


if __name__ == "__main__":
    main()
