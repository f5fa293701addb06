"""Spark's driver out of memory: its Java process ends under a worker that lives on."""

from collections.abc import Callable
from typing import Any

import pytest

from pg_pipeline.coordination import dead_letters, executions
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.helpers import ChildProcess

# A worker whose transform asks for more memory than the driver has, where the batch has the file for it.
WORKER = """
import sys
from pg_pipeline.assets.work import Bench, drain
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.session import session

def greedy(df, batch):
    if any("greedy" in file.path for file in batch.files):
        df.sparkSession.sparkContext._jvm.java.nio.ByteBuffer.allocate(2**30)
    return df

ensure_java()
dsn, slots = sys.argv[1:]
pipeline = FilePipeline(name="orders", format="json", schema="id long", sink=PostgresTable("t"), transform=greedy)
start = lambda: session({"spark.driver.memory": "512m"}, master="local[2]")
with Database(dsn) as db, Worker(db, pipelines=["orders"], heartbeat_interval=0.05) as worker:
    for outcome in drain(Bench(worker, {"orders": pipeline}, start, dsn), slots=int(slots), linger=0.0):
        print(outcome, flush=True)
"""
Work = Callable[[int], ChildProcess]


@pytest.fixture
def orders(bench: PipelineBench) -> FilePipeline:
    """Three batches of one file each; the first is too large for the driver."""
    made = FilePipeline(name="orders", format="json", schema="id long", sink=PostgresTable("t"), batch_files=1)
    bench.use(made, queue={"max_attempts": 2, "breaker_after": 0})
    bench.plant("day1", {f"{n}{'-greedy' if n == 0 else ''}.json": [{"id": n}] for n in range(3)})
    return made


@pytest.fixture
def work(dsn: str, child: Callable[..., ChildProcess]) -> Work:
    return lambda slots: child(WORKER, dsn, str(slots))


def outcomes(bench: PipelineBench, execution: str) -> list[tuple[int, str]]:
    return [
        (attempt["batch"], attempt["outcome"])
        for attempt in executions.attempts(bench.db, execution)
        if attempt["kind"] == "batch"
    ]


def test_p10_a_worker_whose_driver_ran_out_of_memory_claims_nothing_more_and_says_why(
    bench: PipelineBench, orders: FilePipeline, work: Work, spark: Any
) -> None:
    execution = bench.enqueue(orders, bench.folder / "day1")
    dead = work(1)
    assert dead.wait() != 0
    said = dead.stderr.strip().splitlines()[-1]
    assert "Spark ended under this worker (its Java process ended with code 3)" in said
    assert "raise spark.driver.memory" in said
    assert [batch for batch, _ in outcomes(bench, execution)] == [0], "it claimed more"
    bench.drain()  # with a driver that has enough
    assert sorted(outcomes(bench, execution)) == [(0, "committed"), (0, "lost"), (1, "committed"), (2, "committed")]
    assert bench.execution(execution).status == "finished"


@pytest.mark.long
def test_p2_a_batch_that_is_too_much_for_the_driver_becomes_a_dead_letter_and_its_neighbours_go_through(
    bench: PipelineBench, orders: FilePipeline, work: Work, conn: Any
) -> None:
    """All three are under way when the first kills Spark; from then on each runs alone."""
    execution = bench.enqueue(orders, bench.folder / "day1")
    runs = 0
    while any(batch.state == "waiting" for batch in bench.batches(execution)):
        runs += 1
        assert runs < 6, f"a loop: {outcomes(bench, execution)}"
        work(3).wait()
    (letter,) = dead_letters.listed(bench.db)
    assert (letter["batch"], letter["reason"]) == (0, "attempts_exhausted")
    assert conn.execute("select id from t order by id").fetchall() == [(1,), (2,)]
    assert [outcome for batch, outcome in outcomes(bench, execution) if batch == 0] == ["lost", "lost"]
