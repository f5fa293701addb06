"""`pg-pipeline up`, as a person uses it: files dropped into landing become a summary with no further touch."""

import os
import signal

import dagster as dg
import psutil
import psycopg
import pytest
import requests

from pg_pipeline.cli.demo_files import plant
from pg_pipeline.coordination import executions, partitions
from pg_pipeline_tests.e2e.stack import MINUTES, Up
from pg_pipeline_tests.helpers import wait_until


def lease_pid(up: Up) -> int | None:
    """The process of a worker that holds a batch, once some are committed."""
    report = up.execution()
    if report is None or report.remaining == report.expected:
        return None
    held = [lease for lease in executions.leases(up.db) if lease["kind"] == "batch"]
    return int(held[0]["worker_name"].rsplit(":", 1)[1]) if held else None


def finished(up: Up) -> partitions.ExecutionReport | None:
    report = up.execution()
    return report if report is not None and report.status == "finished" else None


def test_files_dropped_into_landing_become_a_summary_though_a_worker_is_killed(up: Up) -> None:
    planted = plant(up.folder / "data" / "orders" / "2026-11-18", files=160, rows=20)
    victim = wait_until(lambda: lease_pid(up), timeout=MINUTES, what="a worker that holds a batch")
    os.kill(victim, signal.SIGKILL)
    report = wait_until(lambda: finished(up), timeout=MINUTES, what="the summary")

    assert (report.files, report.quarantined, report.rows_out) == (planted.files, planted.broken, planted.rows)
    outcomes = [attempt["outcome"] for attempt in executions.attempts(up.db, report.execution)]
    assert "lost" in outcomes or "fenced" in outcomes
    assert outcomes.count("committed") == report.expected + 1
    assert executions.audit(up.db) == []
    with psycopg.connect(up.db.dsn) as conn:
        (rows, orders) = (
            conn.execute("select count(*), count(distinct order_id) from analytics.orders").fetchone() or ()
        )
    assert rows == orders == planted.rows

    with dg.DagsterInstance.from_config(str(up.state / "dagster")) as instance:
        listed = instance.get_dynamic_partitions("orders_batches")
        assert len(listed) == report.expected
        everything = dg.DynamicPartitionsDefinition(name="orders_batches")

        def bar() -> bool:
            found = instance.get_status_by_partition(dg.AssetKey(["orders", "batches"]), listed, everything) or {}
            return {getattr(status, "name", None) for status in found.values()} == {"MATERIALIZED"}

        wait_until(bar, timeout=MINUTES, what="the partition bar to be all green")

        def runs() -> set[str]:
            return {run.status.value for run in instance.get_runs()}

        # The run links to the report, which is there.
        (told,) = instance.fetch_materializations(dg.AssetKey(["orders", "summary"]), limit=1).records
        assert told.asset_materialization is not None
        link = told.asset_materialization.metadata["report"]
        assert isinstance(link, dg.UrlMetadataValue)
        assert link.url == f"{up.pages}/report/{report.execution}"
        page = requests.get(link.url, timeout=60)
        assert (page.status_code, f"<title>{report.execution}" in page.text) == (200, True)

        # The killed run is shown as failed, every other one came to its end.
        wait_until(lambda: runs() == {"SUCCESS", "FAILURE"}, timeout=MINUTES, what="every run to end")

    well = requests.get(f"{up.pages}/health", timeout=60)
    assert (well.status_code, [one["name"] for one in well.json() if one["fix"]]) == (200, [])
    assert {"Postgres", "Dagster", "Daemon SENSOR"} <= {one["name"] for one in well.json()}
    environment = {"PG_PIPELINE_STATE_DIR": str(up.state)}
    asked = up.child(None, "health", "--up", up.address, module="pg_pipeline", env=environment)
    assert asked.wait() == 0, asked.stdout + asked.stderr

    family = up.family()
    up.process.signal(signal.SIGINT)
    assert up.process.wait() == 0, up.process.stderr
    wait_until(lambda: not [pid for pid in family if psutil.pid_exists(pid)], timeout=60, what="all of it to be gone")


@pytest.mark.parametrize("up", [{"PG_PIPELINE_PIPELINES": "my_project"}], indirect=True)
def test_the_readmes_own_pipeline_is_what_up_loads(up: Up) -> None:
    answer = requests.post(f"{up.address}/graphql", json={"query": "{assetNodes {assetKey {path}}}"}, timeout=60).json()
    found = {"/".join(node["assetKey"]["path"]) for node in answer["data"]["assetNodes"]}
    assert found == {"my_orders/enqueued", "my_orders/batches", "my_orders/summary"}
    assert "did not load" not in up.process.stdout
