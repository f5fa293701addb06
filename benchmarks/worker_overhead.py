"""What a worker run costs beside its Spark work, and what a tick costs when a thousand batches wait.

The Spark work alone: read, check, transform and stage every batch, one after the other, and nothing else. Then the same
with each batch's rows put into the table, in a transaction of its own: the least that a loop of one's own does.
Ours is a worker run as it is by default, and one with a single slot: claims, heartbeats, finishes, the ledger, the
callback, Dagster's events in Postgres and the asset checks.

One process, one Spark session, rounds in random order; the ratios are made of the times of one round.
Run: python -m benchmarks.worker_overhead [--batches 200] [--rows 50] [--rounds 3] [--waiting 1000] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg

from benchmarks.database import Server
from benchmarks.harness import Case, Check, Result, interleaved, table
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

    def spark_work(self, folder: Path) -> float:
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


def compare(ways: Ways, batches: int, count: int, dice: random.Random) -> tuple[Case, list[Check]]:
    def timed(way: Callable[[Path], float], number: int) -> Callable[[], float]:
        return lambda: way(ways.plant(number))

    known = {
        "the Spark work alone": ways.spark_work,
        "and each batch inserted": ways.insert,
        "ours, one slot": ways.worker,
        "ours": ways.default,
    }
    interleaved({name: timed(way, min(batches, 10)) for name, way in known.items()}, 1, dice)  # warms up
    rounds = interleaved({name: timed(way, batches) for name, way in known.items()}, count, dice)
    case = Case(f"a worker run over {batches} small batches", "s", rounds)
    pairs = [(way, case.ratio(way, "the Spark work alone")) for way in ("ours", "ours, one slot")]
    return case, [
        Check(f"{case.name}: {way} to the Spark work alone", ratio, 1.2, "at most", "×") for way, ratio in pairs
    ]


def ticks(ways: Ways, waiting: int, count: int) -> tuple[Case, list[Check]]:
    """Every sensor, while many batches wait."""
    bench = ways.bench

    def timed(sensor: str) -> float:
        began = time.perf_counter()
        bench.tick(sensor)
        return time.perf_counter() - began

    files = [FileVersion(f"/in/{uuid.uuid4()}.json", "1", 10) for _ in range(waiting)]
    made = submission.submit(bench.db, "orders", files, request_key=uuid.uuid4().hex)
    assert made.batches == waiting
    sensors = {"bench_depth": "depth", "orders_callbacks": "callbacks", "bench_outbox": "outbox", "orders_landing":
               "landing", "bench_dead_letters": "dead letters", "bench_reaper": "reaper"}  # fmt: skip
    case = Case(
        f"a tick while {waiting:,} batches wait",
        "s",
        [{said: timed(name) for name, said in sensors.items()} for _ in range(count)],
    )
    slowest = max(case.ways, key=case.median)
    return case, [Check(f"{case.name}: the slowest sensor", case.median(slowest), 1.0, "at most", " s")]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    for name, value in {"batches": 200, "rows": 50, "rounds": 3, "waiting": 1000, "seed": 0}.items():
        arguments.add_argument(f"--{name}", type=int, default=value)
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    result = measure(given.batches, given.rows, given.rounds, given.waiting, given.seed)
    for row in table([result]):
        print(" | ".join(row[1:]))
    if given.out:
        result.save(given.out)


def measure(batches: int, rows: int, rounds: int, waiting: int, seed: int) -> Result:
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
            ways = Ways(bench, spark, rows)
            worked, checks = compare(ways, batches, rounds, random.Random(seed))
            ticked, more = ticks(ways, waiting, rounds)
            bench.assert_audit_clean()
            bench.db.close()
        spark.stop()
        about = {"postgres": Server(server).settings()}
        server.detach()
    return Result(7, "End to end", [worked, ticked], [*checks, *more], about=about)


if __name__ == "__main__":
    main()
