"""A worker's run from the inside: it hands back when it is stopped, ends when nothing is left, and tells in batches."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pg_pipeline.assets import events
from pg_pipeline.assets.work import Bench, drain
from pg_pipeline.coordination import executions
from pg_pipeline.coordination.metrics import samples
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.orders import files_of_orders

Make = Callable[..., FilePipeline]


def slow(gate: Path) -> Callable[..., Any]:
    """A transform whose rows wait until the gate is there."""

    def wait(rows: Any) -> Any:
        while not gate.exists():
            time.sleep(0.05)
        yield from rows

    return lambda df, _batch: df.mapInArrow(wait, df.schema)


def test_a_stopped_run_cancels_its_spark_jobs_and_releases_its_leases(
    bench: PipelineBench, make_orders: Make, spark: SparkSession, tmp_path: Path
) -> None:
    orders = make_orders(transform=slow(tmp_path / "gate"))
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(4)))
    with Worker(bench.db, kinds=["batch"], heartbeat_interval=0.05) as worker:
        going = drain(Bench(worker, {"orders": orders}, lambda: spark, bench.dsn))
        assert next(going) is None  # both slots work, and nothing came of it yet
        wait_until(lambda: len(worker.held) == 2, what="both slots to hold a batch")
        wait_until(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), timeout=120, what="Spark jobs")
        going.close()
        assert worker.held == []
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    attempts = executions.attempts(bench.db, execution)
    assert [a["outcome"] for a in attempts] == ["released", "released"]
    (tmp_path / "gate").touch()
    bench.drain()
    assert [b.attempts for b in bench.batches(execution)] == [1, 1]  # a release is not counted


def test_a_lost_lease_ends_its_spark_job_and_the_worker_goes_on(
    bench: PipelineBench, make_orders: Make, spark: SparkSession, tmp_path: Path
) -> None:
    orders = make_orders(transform=slow(tmp_path / "gate"))
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(2)))
    benches: list[Bench] = []
    worker = Worker(
        bench.db, kinds=["batch"], heartbeat_interval=0.05, on_lost=lambda lease, why: benches[0].lost(lease, why)
    )
    benches.append(Bench(worker, {"orders": orders}, lambda: spark, bench.dsn))
    outcomes: list[Any] = []
    with worker:
        thread = threading.Thread(target=lambda: outcomes.extend(drain(benches[0], slots=1, linger=0.0)))
        thread.start()
        wait_until(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), timeout=120, what="the Spark job")
        executions.cancel(bench.db, execution, "a change of mind")
        thread.join(60)
        assert not thread.is_alive()
    assert [outcome.status for outcome in outcomes if outcome] == ["lost"]


def broken_spark() -> SparkSession:
    raise RuntimeError("no Java to be found")


@pytest.mark.parametrize("known", [True, False])
def test_a_spark_that_does_not_start_costs_no_batch_an_attempt(
    bench: PipelineBench, make_orders: Make, known: bool
) -> None:
    """Whether its worker knew before that there was work, or it came while it waited."""
    orders = make_orders()
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(4)))
    with Worker(bench.db, kinds=["batch"], heartbeat_interval=0.05) as worker:
        broken = Bench(worker, {"orders": orders}, broken_spark, bench.dsn, lambda: known)
        with pytest.raises(RuntimeError, match="no Java to be found"):
            list(drain(broken))
        assert worker.held == []
    assert [(batch.state, batch.attempts) for batch in bench.batches(execution)] == [("waiting", None)] * 2
    released = {attempt["outcome"] for attempt in executions.attempts(bench.db, execution)}
    assert released == (set() if known else {"released"})


def test_spark_is_there_before_a_batch_is_claimed(bench: PipelineBench, make_orders: Make, spark: SparkSession) -> None:
    orders = make_orders()
    bench.enqueue(orders, bench.plant("day1", files_of_orders(2)))
    held: list[int] = []
    with Worker(bench.db, kinds=["batch"], heartbeat_interval=0.05) as worker:

        def start() -> SparkSession:
            held.append(len(worker.held))
            return spark

        list(drain(Bench(worker, {"orders": orders}, start, bench.dsn), linger=0.0))
    assert held == [0]


class Unpublishable(PostgresTable):
    def publish(self, *_args: Any) -> int:
        raise OSError("the archive is full")


def test_work_that_was_done_and_could_not_finish_is_told_from_work_that_failed(
    bench: PipelineBench, make_orders: Make, spark: SparkSession
) -> None:
    orders = make_orders({"max_attempts": 1}, sink=Unpublishable("analytics.orders"))
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(2)))
    with Worker(bench.db, kinds=["batch"], heartbeat_interval=0.05) as worker:
        (outcome,) = [o for o in drain(Bench(worker, {"orders": orders}, lambda: spark, bench.dsn), linger=0.0) if o]
    assert (outcome.status, outcome.error) == ("failed", "OSError: the archive is full")
    (attempt,) = executions.attempts(bench.db, execution)
    assert (attempt["outcome"], attempt["error_class"]) == ("failed", "OSError at finish")
    unfinished = {s.labels["why"]: s.value for s in samples(bench.db) if s.name == "unfinished_recent"}
    assert unfinished == {"taken over": 0, "execution ended": 0, "finish failed": 1}


def test_a_worker_run_ends_when_its_time_is_up(bench: PipelineBench, make_orders: Make, spark: SparkSession) -> None:
    orders = make_orders()
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(4)))
    bench.drain(max_seconds=0.000001)
    assert [batch.state for batch in bench.batches(execution)] == ["waiting", "waiting"]


@pytest.mark.parametrize("batched", [True, False])
def test_many_events_are_all_there_with_and_without_dagsters_internals(
    batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BATCH", 25)
    if not batched:
        monkeypatch.setattr(events, "_log_together", lambda _context, _events: False)

    @dg.op
    def tell(context: dg.OpExecutionContext) -> None:
        events.log_events(context, [dg.AssetMaterialization("things", partition=f"p{n}") for n in range(60)])

    @dg.job
    def job() -> None:
        tell()

    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process(instance=instance)
        assert len(instance.get_materialized_partitions(dg.AssetKey("things"))) == 60
    assert "DAGSTER_EVENT_BATCH_SIZE" not in os.environ
