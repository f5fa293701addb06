"""Dagster's own command on `workspace.yaml`, with nothing else set up: no DAGSTER_HOME, no Postgres, no `up`."""

import signal
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from pg_pipeline.cli.demo_files import plant
from pg_pipeline.coordination import executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.postgres import embedded_server
from pg_pipeline.errors import PgPipelineError
from pg_pipeline.settings import get_settings
from pg_pipeline_tests.e2e.stack import MINUTES, free_ports, write_workspace
from pg_pipeline_tests.helpers import ChildProcess, wait_until

BAR = """{assetNodeOrError(assetKey: {path: ["orders", "batches"]}) {
  ... on AssetNode {partitionStats {numPartitions numMaterialized numFailed}}}}"""


def bar(port: int) -> dict[str, Any] | None:
    """What the UI draws as the partition bar."""
    with suppress(requests.RequestException, KeyError, TypeError):
        answer = requests.post(f"http://127.0.0.1:{port}/graphql", json={"query": BAR}, timeout=60).json()
        return dict(answer["data"]["assetNodeOrError"]["partitionStats"])
    return None


@pytest.mark.long
def test_dagster_dev_alone_turns_landed_files_into_a_summary(
    tmp_path: Path, session_dir: Path, child: Callable[..., ChildProcess]
) -> None:
    write_workspace(tmp_path)
    planted = plant(tmp_path / "data" / "orders" / "day1", files=30, rows=20)
    (port,) = free_ports(1)
    state = session_dir / f"dev-{uuid.uuid4().hex[:4]}"
    environment = {"PG_PIPELINE_STATE_DIR": str(state), "PG_PIPELINE_EMBEDDED_LINGER": "0", "DAGSTER_HOME": None}
    process = child(None, "dev", "--port", str(port), module="dagster", env=environment, cwd=tmp_path)
    server = embedded_server(get_settings(state_dir=str(state)))

    def finished() -> partitions.ExecutionReport | None:
        assert process.alive, process.stderr
        if not (server.folder / "keeper.lock").exists():
            return None
        with suppress(psycopg.Error, PgPipelineError), Database(server.dsn(), idle=1, timeout=2) as db:
            found = executions.listed(db)
            report = partitions.execution(db, found[0]["execution"]) if found else None
            return report if report is not None and report.status == "finished" else None
        return None

    try:
        report = wait_until(finished, timeout=2 * MINUTES, what="the summary")
        assert (report.files, report.quarantined, report.rows_out) == (planted.files, planted.broken, planted.rows)
        green = {"numPartitions": report.expected, "numMaterialized": report.expected, "numFailed": 0}
        wait_until(lambda: bar(port) == green, timeout=MINUTES, what=f"the partition bar to be all green, {green}")
        process.signal(signal.SIGINT)
        process.wait()
    finally:
        if process.alive:
            process.kill9_group()
