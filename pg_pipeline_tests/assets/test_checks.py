"""Asset checks find what they are there to find, and metadata shows what people look at."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import psycopg
import pytest

from pg_pipeline.assets.checks import CHECKS, evaluate
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.orders import files_of_orders, order

pytestmark = pytest.mark.usefixtures("spark")
Make = Callable[..., FilePipeline]


def verdicts(bench: PipelineBench, pipeline: FilePipeline) -> dict[str, bool]:
    return {str(result.check_name): result.passed for result in evaluate(pipeline, bench.db)}


def test_a_worker_reports_every_check_and_each_can_fail(
    bench: PipelineBench, make_orders: Make, conn: psycopg.Connection[Any]
) -> None:
    orders = make_orders()
    execution = bench.enqueue(orders, bench.plant("day1", {**files_of_orders(3), "bad.json": "{"}))
    bench.drain()
    latest = bench.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(dg.AssetKey(["orders", "batches"]), name) for name in CHECKS]
    )
    shown = {key.name: record.event.dagster_event.asset_check_evaluation_data.passed for key, record in latest.items()}  # type: ignore[union-attr]
    assert shown == {**dict.fromkeys(CHECKS, True), "quarantine_within_tolerance": False}

    conn.execute("delete from analytics.orders where order_id = 3")
    assert not verdicts(bench, orders)["rows_add_up"]
    conn.execute("alter table analytics.orders rename column customer to client")
    assert not verdicts(bench, orders)["schema_as_declared"]
    other = bench.enqueue(orders, bench.plant("day2", {"x.json": [order(1)]}))
    with Worker(bench.db) as worker:
        worker.fail(worker.claim(1, execution=other)[0], "boom", retryable=False)
    assert not verdicts(bench, orders)["no_dead_letters"]
    conn.execute("update pipeline.execution set settled = settled - 1 where key = %s", (execution,))
    conn.execute("update pipeline.execution set state = 'sealed', ended_at = null where key = %s", (execution,))
    assert not verdicts(bench, orders)["audit_clean"]
    conn.execute(
        "update pipeline.execution set settled = settled + 1, state = 'finished', ended_at = now() where key = %s",
        (execution,),
    )


def test_checks_run_from_the_ui(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    made = orders.definitions()
    result = dg.materialize(
        [*(made.assets or ()), *(made.asset_checks or ())],  # type: ignore[list-item]
        selection=dg.AssetSelection.checks_for_assets(dg.AssetKey(["orders", "batches"])),
        instance=bench.instance,
        resources={**(made.resources or {}), **bench.resources},
    )
    assert len(result.get_asset_check_evaluations()) == len(CHECKS)


def test_one_check_can_be_executed_alone(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    made = orders.definitions()
    (every,) = made.asset_checks or ()
    assert isinstance(every, dg.AssetChecksDefinition)
    assert every.can_subset, "the UI greys out what can't be executed alone"
    result = dg.materialize(
        [*(made.assets or ()), every],  # type: ignore[list-item]
        selection=dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey(["orders", "batches"]), "audit_clean")),
        instance=bench.instance,
        resources={**(made.resources or {}), **bench.resources},
    )
    assert [found.check_name for found in result.get_asset_check_evaluations()] == ["audit_clean"]


def test_a_summary_is_shown_with_its_columns_in_their_order(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders()
    bench.enqueue(orders, bench.plant("day1", files_of_orders(2)))
    bench.drain()
    (told,) = bench.instance.fetch_materializations(dg.AssetKey(["orders", "summary"]), limit=1).records
    assert told.asset_materialization is not None
    table = told.asset_materialization.metadata["summary"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [column.name for column in table.schema.columns] == ["country", "orders", "amount", "last_at"]


def test_a_batch_shows_what_people_look_at(bench: PipelineBench, make_orders: Make) -> None:
    orders = make_orders(batch_files=10)
    refund = {"refund.json": [order(1, amount=-3)]}
    execution = bench.enqueue(orders, bench.plant("day1", {**files_of_orders(2), **refund, "bad.json": "{"}))
    result = bench.drain()
    (event,) = [
        e.step_materialization_data.materialization
        for e in result.all_events
        if e.is_step_materialization and e.asset_key == dg.AssetKey(["orders", "batches"])
    ]
    shown = {name: value.value for name, value in event.metadata.items()}
    assert event.partition == f"{execution}~00000"
    wanted = {"files": 4, "rows_in": 11, "rows_out": 10, "rows_filtered": 1, "quarantined": 1, "attempts": 1}
    assert {name: shown[name] for name in wanted} == wanted
    assert shown["dagster/row_count"] == 10
    assert shown["dagster/relation_identifier"] == "analytics.orders"
    assert "amount" in [column.name for column in shown["dagster/column_schema"].columns]
    assert event.metadata["quarantined_files"].records[0].data["path"].endswith("bad.json")  # type: ignore[attr-defined]
    assert shown["duration_seconds"] > 0
    assert shown["committed_by_run"] == result.run_id


def test_an_upsert_pipeline_goes_through_the_same_finish(
    bench: PipelineBench, make_orders: Make, conn: psycopg.Connection[Any]
) -> None:
    sink = PostgresTable("analytics.latest", mode="upsert", key=["customer"], order="at")
    orders = make_orders(sink=sink, callback=None)
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(4)))
    bench.drain()
    assert bench.execution(execution).summary["rows_in"] == 20
    (count,) = conn.execute("select count(*) from analytics.latest").fetchone() or (0,)
    assert count == 7
    assert all(verdicts(bench, orders).values())
