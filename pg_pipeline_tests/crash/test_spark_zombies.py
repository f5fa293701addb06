"""A worker with its Spark session, stopped in the middle of its tasks and woken up again, in each sink."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination import executions
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.helpers import ChildProcess, wait_until
from pg_pipeline_tests.orders import bench

__all__ = ["bench"]

# Its tasks give half of their rows, and the rest never, since nobody takes the file away.
ZOMBIE = """
import sys, time
from pathlib import Path
from pg_pipeline.assets.work import Bench, drain
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.spark.session import session
from pg_pipeline_tests.crash.test_spark_zombies import sinks

dsn, folder = sys.argv[1], Path(sys.argv[2])

def held(name):
    def halfway(batches):
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            (folder / "started" / name).touch()
            while True:
                time.sleep(0.1)
    return lambda df, _batch: df.mapInArrow(halfway, df.schema)

ensure_java()
pipelines = {
    name: FilePipeline(name=name, format="json", schema="id long", sink=sink, transform=held(name))
    for name, sink in sinks(folder).items()
}
made = []
with Database(dsn) as db, Worker(
    db, pipelines=list(pipelines), kinds=["batch"], heartbeat_interval=0.1,
    on_lost=lambda lease, why: made[0].lost(lease, why),
) as worker:
    made.append(Bench(worker, pipelines, lambda: session(master="local[4]"), dsn))
    for outcome in drain(made[0], slots=len(pipelines), linger=0.0):
        if outcome is not None:
            print(outcome.lease.pipeline, outcome.status, flush=True)
"""
IDS = list(range(40))


def sinks(folder: Path) -> dict[str, Any]:
    return {
        "driver": PostgresTable("by_driver"),
        "executors": PostgresTable("by_executors", inline_bytes=0),
        "parquet": ParquetDataset(str(folder / "lake")),
    }


@pytest.mark.long
def test_p3_a_zombie_of_each_sink_has_its_spark_jobs_cancelled_and_shows_nothing(
    bench: PipelineBench, child: Callable[..., ChildProcess], spark: Any
) -> None:
    folder = bench.folder
    (folder / "started").mkdir()
    pipelines = {
        name: FilePipeline(name=name, format="json", schema="id long", sink=sink)
        for name, sink in sinks(folder).items()
    }
    bench.use(*pipelines.values(), queue={"lease": "2 s"})
    keys = {}
    for name, pipeline in pipelines.items():
        keys[name] = bench.enqueue(pipeline, bench.plant(f"in/{name}", {"a.json": [{"id": n} for n in IDS]}))
    zombie = child(ZOMBIE, bench.dsn, str(folder))
    started = wait_until(lambda: sorted(p.name for p in (folder / "started").iterdir()) == sorted(keys), timeout=240)
    assert started
    os.killpg(zombie.pid, signal.SIGSTOP)

    def taken_over() -> bool:
        bench.drain()
        return {bench.execution(key).status for key in keys.values()} == {"finished"}

    wait_until(taken_over, timeout=240, what="another worker to do what the stopped one held")
    os.killpg(zombie.pid, signal.SIGCONT)
    assert zombie.wait(240) == 0, zombie.stderr  # its tasks would have gone on for ever
    assert sorted(zombie.stdout.split("\n")) == sorted(["", *(f"{name} lost" for name in keys)])
    for name, key in keys.items():
        assert shown(bench, spark, pipelines[name].sink) == IDS, name
        outcomes = [a["outcome"] for a in executions.attempts(bench.db, key) if a["kind"] == "batch"]
        assert sorted(outcomes)[0] == "committed"
        assert set(outcomes) <= {"committed", "lost", "fenced"}


def shown(bench: PipelineBench, spark: Any, sink: Any) -> list[int]:
    with psycopg.connect(bench.dsn) as conn:
        if isinstance(sink, ParquetDataset):
            return sorted(row.id for row in sink.read(spark, conn).collect())
        return sorted(row[0] for row in conn.execute(f"select id from {sink.table}"))
