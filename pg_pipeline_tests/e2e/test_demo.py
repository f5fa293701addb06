"""`pg-pipeline demo` counts right, and what it made answers to the commands of the README."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from pg_pipeline.coordination import executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.postgres import embedded_server
from pg_pipeline.settings import get_settings
from pg_pipeline_tests.helpers import ChildProcess

MINUTES = 10 * 60.0
MODULE = ("-m", "pg_pipeline.definitions")


def test_the_demo_kills_a_worker_and_loses_and_doubles_nothing(
    session_dir: Path, child: Callable[..., ChildProcess]
) -> None:
    state = session_dir / "demo"
    environment = {"PG_PIPELINE_STATE_DIR": str(state), "PG_PIPELINE_EMBEDDED_LINGER": "60", "DAGSTER_HOME": None}
    demo = child(None, "demo", "--files", "120", "--rows", "20", module="pg_pipeline", env=environment)
    assert demo.wait(MINUTES) == 0, demo.stderr + demo.stdout
    shown = {line[:26].strip(): line[26:].strip() for line in demo.stdout.splitlines()}
    assert shown["files in"] == "120"
    assert shown["quarantined files"] == "8 of 8 broken ones"
    assert shown["duplicates"] == shown["lost"] == "0"
    assert shown["audit"] == "clean"
    assert "kill -9 of worker 1" in demo.stdout
    assert int(shown["lost and fenced attempts"].split()[0]) >= 1
    assert "pg-pipeline up" in demo.stdout

    with Database(embedded_server(get_settings(state_dir=str(state))).dsn()) as db:
        (execution,) = [found["execution"] for found in executions.listed(db)]
        assert partitions.unreported(db, ["orders"]) == []
        home = {**environment, "DAGSTER_HOME": str(state / "dagster")}
        for asset, key in (("batches", f"{execution}~00003"), ("summary", execution)):
            arguments = ("asset", "materialize", *MODULE, "--select", f"orders/{asset}", "--partition", key)
            again = child(None, *arguments, module="dagster", env=home)
            assert again.wait(MINUTES) == 0, again.stderr
            assert f"{key} skipped: " in again.stdout + again.stderr
        paths = {"ops": {"orders__enqueued": {"config": {"paths": [str(next((state / "demo").glob("2*")))]}}}}
        command = ("asset", "materialize", *MODULE, "--select", "orders/enqueued", "--config-json", json.dumps(paths))
        assert child(None, *command, module="dagster", env=home).wait(MINUTES) == 0
        (newest, _) = executions.listed(db)
        assert (newest["submission"]["taken"], newest["submission"]["left_out"]) == (0, {"known": 120})
        drain = child(None, "job", "execute", *MODULE, "-j", "pg_pipeline_worker", module="dagster", env=home)
        assert drain.wait(MINUTES) == 0, drain.stderr
        assert executions.audit(db) == []
    assert os.environ.get("DAGSTER_HOME") is None
