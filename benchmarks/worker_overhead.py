"""What a worker run costs beside its Spark work, and what a tick costs when a thousand batches wait.

`spark`    the Spark work of every batch (read, check, transform, stage), one after the other, and nothing else.
`insert`   the same, and each batch's rows put into the table, in a transaction of its own: the least that a loop of
           one's own does.
`worker`   a worker run with one slot: claims, heartbeats, finishes, the ledger, the callback, Dagster's events in
           Postgres and the asset checks.
`default`  the same with two slots, as runs have them.

One process, one Spark session, rounds in random order; the ratios are made of the times of one round.
Run: python -m benchmarks.worker_overhead [--batches 200] [--rows 50] [--rounds 3] [--waiting 1000]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.types import AttemptRef, BatchFile, FileVersion
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.pipelines.orders import orders as example
from pg_pipeline.pipelines.orders import summarise_by_country
from pg_pipeline.resources.instance import dagster_home
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.files import file_version
from pg_pipeline.spark.process import process_batch
from pg_pipeline.spark.session import session
from pg_pipeline.testing import PipelineBench


class Ways:
    def __init__(self, bench: PipelineBench, spark: Any, rows: int) -> None:
        self.bench, self.spark, self.rows = bench, spark, rows
        self.orders = FilePipeline(
            name="orders",
            landing=bench.folder,
            format="json",
            schema=example.schema,
            sink=PostgresTable("analytics.orders"),
            callback=summarise_by_country,
            batch_files=1,
        )
        bench.use(self.orders)

    def plant(self, batches: int) -> Path:
        """A file per batch."""
        files = {
            f"{number:05}.json": [
                {
                    "order_id": number * self.rows + row,
                    "customer": f"c{row % 7}",
                    "amount": row + 0.25,
                    "country": ("DE", "FR", "SE")[row % 3],
                    "at": "2026-11-18T08:00:00Z",
                }
                for row in range(self.rows)
            ]
            for number in range(batches)
        }
        return self.bench.plant(uuid.uuid4().hex, files)

    def _bare(self, folder: Path, insert: bool) -> float:
        sink = PostgresTable("analytics.bare")
        execution = uuid.uuid4().hex[:12]
        found = [file_version(str(path)) for path in sorted(folder.iterdir())]
        attempts = [AttemptRef("bare", execution, 1, number, uuid.uuid4()) for number in range(len(found))]
        with psycopg.connect(self.bench.dsn) as conn:
            began = time.perf_counter()
            for attempt, file in zip(attempts, found, strict=True):
                files = [BatchFile(0, file.path, file.version, file.size)]
                done = process_batch(self.spark, self.orders.recipe(), files, attempt, sink, self.bench.dsn)
                if insert:
                    sink.publish(conn, done.staged, attempt)
                    conn.commit()
            took = time.perf_counter() - began
            for attempt in attempts:
                sink.discard(conn, attempt)
        return took

    def spark_(self, folder: Path) -> float:
        return self._bare(folder, insert=False)

    def insert(self, folder: Path) -> float:
        return self._bare(folder, insert=True)

    def _worker(self, folder: Path, **config: Any) -> float:
        execution = self.bench.enqueue(self.orders, folder)
        began = time.perf_counter()
        self.bench.drain(**config)
        took = time.perf_counter() - began
        assert self.bench.execution(execution).status == "finished"
        return took

    def worker(self, folder: Path) -> float:
        return self._worker(folder, slots=1)

    def default(self, folder: Path) -> float:
        return self._worker(folder)


def compare(ways: Ways, batches: int, rounds: int) -> None:
    timed: dict[str, list[float]] = {}
    for number in range(rounds + 1):  # the first warms up
        names = ["spark_", "insert", "worker", "default"]
        random.shuffle(names)
        for name in names:
            way: Callable[[Path], float] = getattr(ways, name)
            took = way(ways.plant(batches if number else min(batches, 10)))
            if number:
                timed.setdefault(name, []).append(took)
                print(f"round {number}: {name.rstrip('_'):>8} {took:7.1f} s", flush=True)
    print(f"{batches} batches of a file with {ways.rows} rows, {rounds} rounds; seconds, ratio to the Spark work")
    for name in ("spark_", "insert", "worker", "default"):
        ratios = sorted(took / spark for took, spark in zip(timed[name], timed["spark_"], strict=True))
        print(
            f"{name.rstrip('_'):>8}: {statistics.median(timed[name]):6.1f} s, "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def ticks(ways: Ways, waiting: int) -> None:
    """Every sensor, with one batch in the queue and with many: the median of three."""
    bench = ways.bench

    def timed(sensor: str) -> float:
        took = []
        for _ in range(3):
            began = time.perf_counter()
            bench.tick(sensor)
            took.append(time.perf_counter() - began)
        return statistics.median(took)

    def submit(count: int) -> None:
        files = [FileVersion(f"/in/{uuid.uuid4()}.json", "1", 10) for _ in range(count)]
        made = submission.submit(bench.db, "orders", files, request_key=uuid.uuid4().hex)
        assert made.batches == count

    sensors = [
        "bench_depth",
        "orders_callbacks",
        "bench_outbox",
        "bench_dead_letters",
        "bench_reaper",
        "orders_landing",
    ]
    submit(1)
    few = {sensor: timed(sensor) for sensor in sensors}
    submit(waiting)
    print(f"one tick with {waiting} batches waiting; seconds, and with one")
    for sensor in sensors:
        print(f"{sensor:>20}: {timed(sensor):.3f} ({few[sensor]:.3f})")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    for name, value in {"batches": 200, "rows": 50, "rounds": 3, "waiting": 1000}.items():
        arguments.add_argument(f"--{name}", type=int, default=value)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgp-bench-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedServer(Path(folder) / "postgres", linger=0)
        server.attach()
        dsn = server.dsn("postgres")
        migrate(dsn)
        os.environ.pop("DAGSTER_HOME", None)
        home = dagster_home(get_settings(dsn=dsn, state_dir=f"{folder}/state"))
        ensure_java()
        spark = session({"spark.sql.warehouse.dir": f"{folder}/warehouse"})
        with dg.DagsterInstance.from_config(str(home)) as instance:
            bench = PipelineBench(dsn, Path(folder) / "landing", instance)
            bench.folder.mkdir()
            ways = Ways(bench, spark, given.rows)
            compare(ways, given.batches, given.rounds)
            ticks(ways, given.waiting)
            bench.assert_audit_clean()
            bench.db.close()
        spark.stop()
        server.detach()


if __name__ == "__main__":
    main()
