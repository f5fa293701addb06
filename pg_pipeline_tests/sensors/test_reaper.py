"""Dead runs are shown as failed, what was committed is told once, leavings go, old partitions go."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg
import pytest

from pg_pipeline.assets.enqueue import REQUEST_TAG
from pg_pipeline.coordination import partitions, submission
from pg_pipeline.coordination.lease import CallbackResult
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sensors import reaper
from pg_pipeline.sensors.reaper import remove_old_partitions, report_late
from pg_pipeline.sensors.runs import waiting_for_slots
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.sensors.test_depth import definitions_job, wait_for_slot, worker_run

Tick = Callable[[], Any]


@pytest.fixture
def orders(make_orders: Callable[..., FilePipeline]) -> FilePipeline:
    return make_orders(batch_files=1)


@pytest.fixture
def tick(bench: PipelineBench, orders: FilePipeline) -> Tick:
    return lambda: bench.tick("bench_reaper")


def submit(bench: PipelineBench, files: int, key: str = "k") -> str:
    versions = [FileVersion(f"/in/{key}/{n}.json", "1", 10) for n in range(files)]
    return submission.submit(bench.db, "orders", versions, request_key=key).execution


def status(bench: PipelineBench, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = bench.instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def materializations(bench: PipelineBench, asset: str) -> list[str | None]:
    records = bench.instance.fetch_materializations(dg.AssetKey(["orders", asset]), limit=100).records
    return sorted(r.asset_materialization.partition or "" for r in records if r.asset_materialization)  # type: ignore[type-var]


@pytest.fixture
def finished(bench: PipelineBench, orders: FilePipeline) -> str:
    """An execution that a worker finished and told nobody of."""
    execution = submit(bench, 3)
    with Worker(bench.db) as worker:
        for lease in worker.claim(3):
            worker.finish(lease, {"rows_in": 4, "rows_out": 4})
        worker.finish(worker.claim(1)[0], CallbackResult(summary={"rows": []}))
    return execution


def test_a_run_whose_worker_died_is_reported_failed(bench: PipelineBench, tick: Tick) -> None:
    run = bench.instance.create_run_for_job(definitions_job(), status=dg.DagsterRunStatus.STARTED)
    worker = Worker(bench.db, run_id=run.run_id)
    tick()
    assert status(bench, run) == dg.DagsterRunStatus.STARTED
    worker._heartbeat.stop()  # no word, no beat, no lock: as a kill -9 leaves it
    wait_until(lambda: partitions.run_lives(bench.db)[run.run_id].live is False, what="the worker to be gone")
    tick()
    assert status(bench, run) == dg.DagsterRunStatus.FAILURE


def test_a_worker_run_that_never_registered_is_reported_failed_once_it_is_old(bench: PipelineBench, tick: Tick) -> None:
    young = worker_run(bench, dg.DagsterRunStatus.STARTED)
    old = worker_run(bench, dg.DagsterRunStatus.STARTED, age=600)
    tick()
    assert status(bench, young) == dg.DagsterRunStatus.STARTED
    assert status(bench, old) == dg.DagsterRunStatus.FAILURE


def test_a_run_that_waits_for_a_slot_of_its_pool_is_not_lost(
    bench: PipelineBench, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = worker_run(bench, dg.DagsterRunStatus.STARTED, age=600)
    wait_for_slot(bench, waits, monkeypatch)
    tick()
    assert status(bench, waits) == dg.DagsterRunStatus.STARTED
    bench.instance.event_log_storage.free_concurrency_slots_for_run(waits.run_id)
    tick()
    assert status(bench, waits) == dg.DagsterRunStatus.FAILURE


def test_a_run_that_was_killed_while_it_waited_for_a_slot_is_lost_and_leaves_the_pool(
    bench: PipelineBench, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its resource said that it lives, from before its step waited."""
    killed = worker_run(bench, dg.DagsterRunStatus.STARTED)
    wait_for_slot(bench, killed, monkeypatch)
    life = Worker(bench.db, pipelines=[], kinds=["run"], run_id=killed.run_id)
    tick()
    assert status(bench, killed) == dg.DagsterRunStatus.STARTED
    life._heartbeat.stop()
    wait_until(lambda: partitions.run_lives(bench.db)[killed.run_id].live is False, what="the run to be gone")
    tick()
    assert status(bench, killed) == dg.DagsterRunStatus.FAILURE
    assert waiting_for_slots(bench.instance) == set()


def test_a_run_that_was_made_and_never_launched_is_not_waited_for_for_ever(bench: PipelineBench, tick: Tick) -> None:
    """As a daemon leaves it that is killed between the two, and that nobody starts again for long."""
    submit(bench, 1)
    made = [worker_run(bench, dg.DagsterRunStatus.NOT_STARTED) for _ in range(2)]
    storage: Any = bench.instance.run_storage
    with storage.connect() as conn:
        conn.exec_driver_sql("update runs set update_timestamp = '2020-01-01' where run_id = ?", (made[0].run_id,))
    tick()
    assert [status(bench, run).value for run in made] == ["FAILURE", "NOT_STARTED"]
    bench.instance.report_run_failed(made[1], "so that nothing is on its way")
    bench.instance.delete_run(made[1].run_id)
    assert bench.tick("bench_depth").run_requests


def test_a_run_that_waited_long_for_its_turn_is_young_when_it_starts(bench: PipelineBench, tick: Tick) -> None:
    run = worker_run(bench, dg.DagsterRunStatus.STARTING)
    storage: Any = bench.instance.run_storage
    with storage.connect() as conn:
        conn.exec_driver_sql("update runs set create_timestamp = '2020-01-01' where run_id = ?", (run.run_id,))
    tick()
    assert status(bench, run) == dg.DagsterRunStatus.STARTING


def test_a_submission_that_was_killed_early_does_not_silence_its_landing(bench: PipelineBench, tick: Tick) -> None:
    old = worker_run(bench, dg.DagsterRunStatus.STARTED, age=600, tags={REQUEST_TAG: "orders"})
    assert "under way" in bench.tick("orders_landing").skip_reason.skip_message  # type: ignore[union-attr,operator]
    tick()
    assert status(bench, old) == dg.DagsterRunStatus.FAILURE


def test_a_run_that_said_goodbye_is_left_to_dagster(bench: PipelineBench, tick: Tick) -> None:
    run = bench.instance.create_run_for_job(definitions_job(), status=dg.DagsterRunStatus.STARTED)
    Worker(bench.db, run_id=run.run_id).stop()
    tick()
    assert status(bench, run) == dg.DagsterRunStatus.STARTED


def test_what_was_committed_and_not_told_is_told_once(bench: PipelineBench, tick: Tick, finished: str) -> None:
    tick()
    assert materializations(bench, "batches") == [f"{finished}~{n:05}" for n in range(3)]
    assert materializations(bench, "summary") == [finished]
    tick()
    assert len(materializations(bench, "batches")) == 3
    assert len(materializations(bench, "summary")) == 1


def test_a_crash_between_telling_and_noting_tells_nothing_twice(
    bench: PipelineBench, orders: FilePipeline, finished: str, conn: psycopg.Connection[Any]
) -> None:
    assert report_late(bench.instance, bench.db, {"orders": orders}) == 4
    conn.execute("update pipeline.batch set reported_generation = 0")
    conn.execute("update pipeline.execution set reported_generation = 0")
    report_late(bench.instance, bench.db, {"orders": orders})
    assert len(materializations(bench, "batches")) == 3
    assert len(materializations(bench, "summary")) == 1
    assert partitions.unreported(bench.db, ["orders"]) == []


def test_a_live_worker_tells_for_itself(bench: PipelineBench, orders: FilePipeline) -> None:
    submit(bench, 1)
    with Worker(bench.db) as worker:
        worker.finish(worker.claim(1)[0], {"rows_in": 4})
        assert report_late(bench.instance, bench.db, {"orders": orders}) == 0
    assert report_late(bench.instance, bench.db, {"orders": orders}) == 1


def test_what_a_dead_attempt_staged_is_discarded(
    bench: PipelineBench, orders: FilePipeline, tick: Tick, conn: psycopg.Connection[Any]
) -> None:
    execution = submit(bench, 1)
    with Worker(bench.db) as worker:
        (lease,) = worker.claim(1)
        location = orders.sink.location(lease.ref)
        worker.note_output(lease, "postgres", location)
        conn.execute(f"create table pipeline_staging.{location['prefix']}0 (n int)")
        tick()
        assert staged(conn) == 1  # it may still commit
        worker.fail(lease, "boom", retryable=False)
    tick()
    assert staged(conn) == 0
    assert bench.execution(execution).status == "blocked"


def staged(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select count(*) from pg_tables where schemaname = 'pipeline_staging'").fetchone()
    assert row is not None
    return int(row[0])


def test_partitions_of_long_ended_executions_go_and_come_back_under_their_generation(
    bench: PipelineBench, make_orders: Callable[..., FilePipeline], finished: str, conn: psycopg.Connection[Any]
) -> None:
    orders = make_orders(batch_files=1, retention=timedelta(days=7))
    going = submit(bench, 1, key="live")
    report_late(bench.instance, bench.db, {"orders": orders})
    assert remove_old_partitions(bench.instance, bench.db, orders) == 0
    conn.execute("update pipeline.execution set ended_at = now() - interval '8 days' where key = %s", (finished,))
    assert remove_old_partitions(bench.instance, bench.db, orders) == 4
    assert bench.instance.get_dynamic_partitions("orders_executions") == []
    assert bench.execution(going).status == "sealed"

    conn.execute("select pipeline.rerun(%s, array[1])", (finished,))
    with Worker(bench.db) as worker:
        worker.finish(worker.claim(1, execution=finished)[0], {"rows_in": 4})
    report_late(bench.instance, bench.db, {"orders": orders})
    assert f"{finished}~00001~g2" in bench.instance.get_dynamic_partitions("orders_batches")
    assert f"{finished}~00001" not in bench.instance.get_dynamic_partitions("orders_batches")


def test_a_tick_that_has_no_time_left_leaves_the_rest_to_the_next(
    bench: PipelineBench, orders: FilePipeline, monkeypatch: pytest.MonkeyPatch, conn: psycopg.Connection[Any]
) -> None:
    monkeypatch.setattr(reaper, "REPORTS", 2)
    execution = submit(bench, 5)
    with Worker(bench.db) as worker:
        for lease in worker.claim(5):
            worker.finish(lease, {"rows_in": 4, "rows_out": 4})
    known = {"orders": orders}
    assert [report_late(bench.instance, bench.db, known, seconds=0) for _ in range(4)] == [2, 2, 1, 0]
    assert materializations(bench, "batches") == [f"{execution}~{n:05}" for n in range(5)]
    with Worker(bench.db) as worker:
        worker.finish(worker.claim(1)[0], CallbackResult(summary={}))
    conn.execute("update pipeline.execution set ended_at = now() - interval '99 days'")
    removed = [remove_old_partitions(bench.instance, bench.db, orders, seconds=0) for _ in range(7)]
    assert removed == [1, 1, 1, 1, 1, 1, 0]  # five batches, then their execution


def test_an_idle_tick_needs_no_run_of_anything(tick: Tick) -> None:
    assert "0 dead runs, 0 late reports" in tick().skip_reason.skip_message
