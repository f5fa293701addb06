"""A DAGSTER_HOME of one's own, which limits pools by op: a run's process is there while its step waits for a slot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from pg_pipeline.coordination import partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.postgres import database_dsn
from pg_pipeline.resources.instance import instance_config
from pg_pipeline.sensors.runs import report_lost_runs, waiting_for_slots
from pg_pipeline_tests.helpers import ChildProcess, wait_until

RUN = """
import dagster as dg
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable

mine = FilePipeline(name="mine", format="json", schema="id long", sink=PostgresTable("mine"), pool="spark")
job = mine.definitions().get_job_def("mine_worker")
job.execute_in_process(instance=dg.DagsterInstance.get())
"""


@pytest.mark.long
def test_a_run_killed_while_its_step_waits_for_a_slot_is_reported_and_leaves_the_pool(
    dsn: str, new_database: Callable[..., str], child: Callable[..., ChildProcess], tmp_path: Path
) -> None:
    config: dict[str, Any] = instance_config(database_dsn(dsn, new_database()))
    config["concurrency"] = {"pools": {"granularity": "op", "default_limit": 1}}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(config))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance, Database(dsn) as db:
        storage = instance.event_log_storage
        storage.initialize_concurrency_limit_to_default("spark")
        assert storage.claim_concurrency_slot("spark", "another run", "drain").is_claimed
        waits = child(RUN, env={"DAGSTER_HOME": str(tmp_path), "PG_PIPELINE_DSN": dsn})
        wait_until(lambda: waiting_for_slots(instance), timeout=60, what=f"a step to wait: {waits.stderr[-2000:]}")
        (run_id,) = waiting_for_slots(instance)
        assert partitions.run_lives(db)[run_id].live
        assert report_lost_runs(instance, db, "mine", ["mine"]) == []

        waits.kill9()
        wait_until(lambda: partitions.run_lives(db)[run_id].live is False, what="the run to be gone")
        assert report_lost_runs(instance, db, "mine", ["mine"]) == [run_id]
        run = instance.get_run_by_id(run_id)
        assert run is not None
        assert run.status == dg.DagsterRunStatus.FAILURE
        assert waiting_for_slots(instance) == set()
