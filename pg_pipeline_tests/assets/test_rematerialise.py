"""Re-materialising is safe, and says what it did: each row of the table in issue 5."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from pg_pipeline.coordination import executions
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sensors.reaper import remove_old_partitions
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.orders import files_of_orders

pytestmark = pytest.mark.usefixtures("spark")
Make = Callable[..., FilePipeline]


def rows(conn: psycopg.Connection[Any]) -> int:
    if not conn.execute("select to_regclass('analytics.orders')").fetchone()[0]:  # type: ignore[index]
        return 0
    return int(conn.execute("select count(*) from analytics.orders").fetchone()[0])  # type: ignore[index]


def log_text(result: dg.ExecuteInProcessResult, bench: PipelineBench) -> str:
    return "\n".join(record.message for record in bench.instance.all_logs(result.run_id))


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [e for e in result.all_events if e.is_step_failure]
    data = event.step_failure_data
    return f"{data.error.message if data.error else ''} {data.user_failure_data}"


def latest(bench: PipelineBench, orders: FilePipeline, key: str) -> dg.AssetMaterialization:
    asset = dg.AssetKey([orders.name, "summary" if "~" not in key else "batches"])
    found = bench.instance.fetch_materializations(dg.AssetRecordsFilter(asset, asset_partitions=[key]), limit=1)
    event = found.records[0].asset_materialization
    assert event is not None
    return event


@pytest.fixture
def orders(make_orders: Make) -> FilePipeline:
    return make_orders(queue_settings={"backoff_base": "1 hour", "backoff_cap": "1 hour"})


@pytest.fixture
def execution(bench: PipelineBench, orders: FilePipeline) -> str:
    """Two batches of two files, five orders each."""
    return bench.enqueue(orders, bench.plant("day1", files_of_orders(4)))


def test_a_ready_batch_is_claimed_and_processed_and_no_other(
    bench: PipelineBench, orders: FilePipeline, execution: str
) -> None:
    bench.materialize(orders, "batches", partition=f"{execution}~00001")
    assert [batch.state for batch in bench.batches(execution)] == ["waiting", "committed"]
    assert bench.materialized(orders, "batches") == {f"{execution}~00001"}


def test_a_range_is_claimed_in_one_run_and_each_key_is_told_of_alone(
    bench: PipelineBench, orders: FilePipeline
) -> None:
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(8)))
    span = {
        "dagster/asset_partition_range_start": f"{execution}~00001",
        "dagster/asset_partition_range_end": f"{execution}~00002",
    }
    result = bench.materialize(orders, "batches", tags=span)
    assert [batch.state for batch in bench.batches(execution)] == ["waiting", "committed", "committed", "waiting"]
    told = [e.partition for e in result.all_events if e.is_step_materialization]
    assert sorted(told) == [f"{execution}~00001", f"{execution}~00002"]


def test_a_failed_batch_that_waits_is_processed_at_once(
    bench: PipelineBench, orders: FilePipeline, execution: str
) -> None:
    with Worker(bench.db) as worker:
        worker.fail(worker.claim(1, execution=execution, batches=[0])[0], "a passing trouble")
    bench.materialize(orders, "batches", partition=f"{execution}~00000")
    (batch, _) = bench.batches(execution)
    assert (batch.state, batch.attempts) == ("committed", 2)


def test_a_batch_of_a_live_worker_is_not_touched_and_its_holder_is_named(
    bench: PipelineBench, orders: FilePipeline, execution: str
) -> None:
    with Worker(bench.db, name="somebody:1", run_id="run-of-somebody") as worker:
        (lease,) = worker.claim(1, execution=execution, batches=[0])
        result = bench.materialize(orders, "batches", partition=f"{execution}~00000")
        assert worker.held == [lease]
    assert "is held by somebody:1 (run run-of-somebody) since" in log_text(result, bench)
    (seen,) = [e for e in result.all_events if e.is_asset_observation]
    assert seen.asset_observation_data.asset_observation.metadata["held_by"].value.startswith("somebody:1")
    assert bench.materialized(orders, "batches") == set()


def test_wait_waits_for_a_live_worker_and_reports_what_it_committed(
    bench: PipelineBench, orders: FilePipeline, execution: str
) -> None:
    with Worker(bench.db, name="somebody:1", run_id="run-of-somebody") as worker:
        (lease,) = worker.claim(1, execution=execution, batches=[0])
        waiting = threading.Thread(
            target=bench.materialize,
            args=(orders, "batches"),
            kwargs={"partition": f"{execution}~00000", "config": {"wait": 60.0}},
        )
        waiting.start()
        wait_until(
            lambda: any(w["kinds"] == ["targeted"] for w in executions.workers(bench.db)), what="the run's worker"
        )
        worker.finish(lease, {"rows_in": 3, "rows_out": 3})
        waiting.join(60)
    event = latest(bench, orders, f"{execution}~00000")
    assert event.metadata["skipped"].value == "skipped: already committed by run run-of-somebody"
    assert event.metadata["rows_out"].value == 3


def test_a_batch_of_a_dead_worker_is_taken_over_with_a_new_token(
    bench: PipelineBench, orders: FilePipeline, execution: str
) -> None:
    dead = bench.crash(execution, 0)
    bench.materialize(orders, "batches", partition=f"{execution}~00000")
    (batch, _) = bench.batches(execution)
    assert (batch.state, batch.attempts) == ("committed", 2)
    assert batch.token != dead.token
    outcomes = {a["token"]: a["outcome"] for a in executions.attempts(bench.db, execution)}
    assert outcomes[dead.token] == "lost"


def test_a_committed_batch_is_skipped_and_reported_as_it_stands(
    bench: PipelineBench, orders: FilePipeline, execution: str, conn: psycopg.Connection[Any]
) -> None:
    first = bench.materialize(orders, "batches", partition=f"{execution}~00000")
    before = rows(conn)
    result = bench.materialize(orders, "batches", partition=f"{execution}~00000")
    assert rows(conn) == before == 10
    event = latest(bench, orders, f"{execution}~00000")
    assert event.metadata["skipped"].value == f"skipped: already committed by run {first.run_id}"
    assert event.metadata["rows_out"].value == 10
    assert len(executions.attempts(bench.db, execution)) == 1
    assert result.success


def test_rerun_waits_for_the_execution_to_finish_then_replaces_the_rows(
    bench: PipelineBench, orders: FilePipeline, execution: str, conn: psycopg.Connection[Any]
) -> None:
    key = f"{execution}~00000"
    bench.materialize(orders, "batches", partition=key)
    early = bench.materialize(orders, "batches", partition=key, config={"rerun": True}, raise_on_error=False)
    assert not early.success
    assert "only a finished one can be re-run" in failure_text(early)

    bench.drain()
    assert bench.execution(execution).status == "finished"
    bench.materialize(orders, "batches", partition=key, config={"rerun": True})
    assert [batch.generation for batch in bench.batches(execution)] == [2, 1]
    assert rows(conn) == 20
    bench.materialize(orders, "summary", partition=execution)
    assert bench.execution(execution).status == "finished"
    assert latest(bench, orders, execution).metadata["generation"].value == "2"


def test_a_dead_letter_is_replayed_and_its_partition_turns_green(
    bench: PipelineBench, make_orders: Make, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def transform(df: Any, _batch: Any) -> Any:
        if broken.exists():
            raise ValueError("the transform is broken")
        return df

    orders = make_orders(transform=transform)
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(4)))
    key = f"{execution}~00000"
    red = bench.drain(raise_on_error=False)
    assert not red.success
    assert "the transform is broken" in failure_text(red)
    assert bench.execution(execution).status == "blocked"
    status = partition_status(bench, orders)
    assert status == {key: "FAILED", f"{execution}~00001": "FAILED"}

    broken.unlink()
    bench.materialize(orders, "batches", partition=key)
    assert bench.batches(execution)[0].state == "committed"
    assert partition_status(bench, orders) == {key: "MATERIALIZED", f"{execution}~00001": "FAILED"}


def partition_status(bench: PipelineBench, orders: FilePipeline) -> dict[str, str]:
    """As the UI shows them."""
    found = bench.instance.get_status_by_partition(
        dg.AssetKey([orders.name, "batches"]),
        bench.instance.get_dynamic_partitions(f"{orders.name}_batches"),
        dg.DynamicPartitionsDefinition(name=f"{orders.name}_batches"),
    )
    return {key: status.name for key, status in (found or {}).items() if status is not None}


def test_a_retried_enqueue_gets_the_same_execution(bench: PipelineBench, orders: FilePipeline) -> None:
    folder = bench.plant("day1", files_of_orders(2))
    config = {"paths": [str(folder)]}
    first = bench.materialize(orders, "enqueued", config=config)
    tags = {"dagster/root_run_id": first.run_id, "dagster/parent_run_id": first.run_id}
    bench.plant("day1", {"late.json": files_of_orders(1)["0000.json"]})
    again = bench.materialize(orders, "enqueued", config={**config, "request_key": f"run:{first.run_id}"}, tags=tags)
    seen = [r.asset_materializations_for_node("orders__enqueued")[0].metadata["execution"] for r in (first, again)]
    assert seen[0] == seen[1]
    assert len(executions.listed(bench.db)) == 1


def test_what_is_refused_fails_the_run_in_one_sentence(bench: PipelineBench, orders: FilePipeline) -> None:
    """A folder outside the roots; the same key for other files."""
    day1, day2 = (bench.plant(day, files_of_orders(1)) for day in ("day1", "day2"))
    bench.enqueue(orders, day1, request_key="k")
    other = {"paths": [str(day2)], "request_key": "k"}
    for config, said in (({"paths": ["/etc"]}, "outside"), (other, "request key k")):
        failed = bench.materialize(orders, "enqueued", config=config, raise_on_error=False)
        event = next(e for e in failed.all_node_events if e.event_type_value == "STEP_FAILURE")
        data = event.step_failure_data
        assert data.user_failure_data is not None
        assert said in (data.user_failure_data.description or "")
    assert len(executions.listed(bench.db)) == 1


def test_asking_again_for_what_ended_long_ago_brings_no_removed_key_back(
    bench: PipelineBench, orders: FilePipeline
) -> None:
    """Dagster would show its old status again."""
    asked = {"request_key": "day1"}
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(2)), **asked)
    assert bench.instance.get_dynamic_partitions("orders_batches") == [f"{execution}~00000"]
    bench.drain()
    remove_old_partitions(bench.instance, bench.db, replace(orders, retention=timedelta(0)))
    assert bench.enqueue(orders, bench.folder / "day1", **asked) == execution
    assert bench.instance.get_dynamic_partitions("orders_batches") == []
    assert bench.instance.get_dynamic_partitions("orders_executions") == []


def test_a_dead_callback_is_replayed_and_one_that_somebody_runs_is_left_to_them(
    bench: PipelineBench, orders: FilePipeline, execution: str
) -> None:
    for number in (0, 1):
        bench.materialize(orders, "batches", partition=f"{execution}~{number:05}")
    with Worker(bench.db, name="somebody:1", run_id="run-of-somebody") as worker:
        (lease,) = worker.claim(1, execution=execution, kind="callback")
        result = bench.materialize(orders, "summary", partition=execution)
        assert "is run by somebody:1 (run run-of-somebody) since" in log_text(result, bench)
        assert bench.materialized(orders, "summary") == set()
        worker.fail(lease, "boom", retryable=False)
    assert bench.execution(execution).status == "blocked"
    bench.materialize(orders, "summary", partition=execution)
    assert bench.execution(execution).status == "finished"
    assert bench.materialized(orders, "summary") == {execution}


def test_the_summary_says_what_is_missing_then_runs_once_then_is_skipped(
    bench: PipelineBench, orders: FilePipeline, execution: str
) -> None:
    early = bench.materialize(orders, "summary", partition=execution, raise_on_error=False)
    assert "2 of 2 batches are missing" in failure_text(early)
    for number in (0, 1):
        bench.materialize(orders, "batches", partition=f"{execution}~{number:05}")
    bench.materialize(orders, "summary", partition=execution)
    assert bench.execution(execution).status == "finished"
    assert bench.materialized(orders, "summary") == {execution}
    bench.materialize(orders, "summary", partition=execution)
    assert latest(bench, orders, execution).metadata["skipped"].value == "skipped: its callback has run"
    assert [a["kind"] for a in executions.attempts(bench.db, execution)].count("callback") == 1
