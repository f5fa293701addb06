"""For your own tests: run a pipeline in process against a real Postgres, plant files, crash an attempt, audit.

def test_my_pipeline(bench: PipelineBench):          # pytest_plugins = ["pg_pipeline.testing"]
    bench.use(my_pipeline)
    bench.plant("day1", {"a.json": [{"id": 1}]})
    execution = bench.enqueue(my_pipeline)
    bench.drain()
    assert bench.execution(execution).status == "finished"
    bench.assert_audit_clean()

PYTEST_DONT_REWRITE: a test imports this module before pytest sees its `pytest_plugins`, and would be warned of that.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from psycopg import sql

from pg_pipeline.coordination import executions, partitions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Lease
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.partitions import BatchReport, ExecutionReport
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.postgres import database_dsn, ensure_running
from pg_pipeline.pipelines.build import definitions
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource, SparkResource

PATIENCE = 30.0


class PipelineBench:
    """A database, a folder and a Dagster instance of one's own, and the pipelines under test."""

    def __init__(self, dsn: str, folder: Path, instance: dg.DagsterInstance | None = None) -> None:
        self.dsn = dsn
        self.folder = folder
        self.instance = instance or dg.DagsterInstance.ephemeral()
        self.db = Database(dsn)
        self._definitions: dg.Definitions | None = None
        self._pipelines: dict[str, FilePipeline] = {}

    def use(self, *pipelines: FilePipeline, queue: Mapping[str, Any] | None = None) -> None:
        """Load these pipelines. Dead workers are noticed, and failures tried again, without a wait."""
        self._pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        self._definitions = definitions(*pipelines, name="bench")
        quick = {"grace": "100 ms", "backoff_base": "0 s", "backoff_cap": "0 s", **(queue or {})}
        for pipeline in pipelines:
            submission.configure_queue(self.db, pipeline.queue, **quick)
            submission.register_pipeline(self.db, pipeline.name, **pipeline.registration)

    @property
    def resources(self) -> dict[str, Any]:
        return {
            "coordination": CoordinationResource(dsn=self.dsn, heartbeat_interval=0.05, webhook_allow_private=True),
            "pyspark": SparkResource(),
        }

    def plant(self, delivery: str, files: Mapping[str, Sequence[Mapping[str, Any]] | str | bytes]) -> Path:
        """Write a delivery below the folder: rows become JSON lines, text and bytes stay as they are. Files look
        older than they are, so that nothing waits for them to stop growing."""
        place = self.folder / delivery
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes | str):
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
            else:
                path.write_text("".join(json.dumps(row, default=str) + "\n" for row in content))
            then = time.time() - 60
            os.utime(path, (then, then))
        return place

    def enqueue(self, pipeline: FilePipeline, *paths: Path | str, **config: Any) -> str:
        """Materialise `<pipeline>/enqueued`; the key of the execution."""
        result = self.materialize(pipeline, "enqueued", config={"paths": [str(path) for path in paths], **config})
        event = result.asset_materializations_for_node(f"{pipeline.name}__enqueued")[0]
        return str(event.metadata["execution"].value)

    def drain(self, *, raise_on_error: bool = True, **config: Any) -> dg.ExecuteInProcessResult:
        """A worker run: everything that is ready, in one go."""
        assert self._definitions is not None
        job = self._definitions.get_job_def("bench_worker")
        run_config = {"ops": {"bench_drain": {"config": {"linger_seconds": 0.0, **config}}}}
        return job.execute_in_process(
            run_config=run_config, instance=self.instance, resources=self.resources, raise_on_error=raise_on_error
        )

    def materialize(
        self,
        pipeline: FilePipeline,
        asset: str,
        *,
        partition: str | None = None,
        config: Mapping[str, Any] | None = None,
        raise_on_error: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialise one asset of the pipeline, as a person would in the UI."""
        assert self._definitions is not None
        key = dg.AssetKey([pipeline.name, asset])
        return dg.materialize(
            list(self._definitions.assets or ()),  # type: ignore[arg-type]
            selection=dg.AssetSelection.assets(key),
            run_config={"ops": {f"{pipeline.name}__{asset}": {"config": dict(config or {})}}},
            instance=self.instance,
            partition_key=partition,
            resources={**(self._definitions.resources or {}), **self.resources},
            raise_on_error=raise_on_error,
            tags=dict(tags or {}),
        )

    def tick(self, sensor: str, *, cursor: str | None = None, **options: Any) -> dg.SensorResult:
        """One tick of a sensor, in milliseconds: its run requests and events, its cursor, or its reason to skip.
        `options` are those of `definitions()`."""
        made = definitions(*self._pipelines.values(), name="bench", **options)
        (found,) = [one for one in made.sensors or () if one.name == sensor]
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources=self.resources, sensor_name=sensor, definitions=made
        ) as context:
            answer: Any = found(context)
        result: dg.SensorResult = dg.SensorResult(skip_reason=answer) if isinstance(answer, dg.SkipReason) else answer
        return result

    def crash(self, execution: str, batch: int | None = None, *, kind: str = "batch") -> Lease:
        """Claim as a worker that dies at once: no release, no word. Returns when the others can see that it is gone."""
        pipeline = self._pipelines[self.execution(execution).pipeline]
        worker = Worker(self.db, pipeline.queue, name="crashed", run_id=None)
        batches = None if batch is None else [batch]
        (lease,) = worker.claim(1, execution=execution, batches=batches, kind=kind)
        worker._heartbeat.stop()
        until = time.monotonic() + PATIENCE
        while self._held(lease):
            assert time.monotonic() < until, f"{lease} is still held"
            time.sleep(0.02)
        return lease

    def _held(self, lease: Lease) -> bool:
        assert lease.execution is not None
        if lease.kind == "callback":
            return bool(partitions.callback_place(self.db, lease.execution).live)
        return any(place.live for place in partitions.places(self.db, lease.execution, [lease.batch or 0]))

    def execution(self, key: str) -> ExecutionReport:
        return partitions.execution(self.db, key)

    def batches(self, key: str) -> list[BatchReport]:
        return partitions.batches(self.db, key)

    def materialized(self, pipeline: FilePipeline, asset: str) -> set[str]:
        """The partitions that Dagster shows as materialised."""
        return set(self.instance.get_materialized_partitions(dg.AssetKey([pipeline.name, asset])))

    def assert_audit_clean(self) -> None:
        violations = executions.audit(self.db)
        assert not violations, f"the audit found {violations}"

    def close(self) -> None:
        self.db.close()
        self.instance.dispose()


@pytest.fixture
def throwaway_dsn() -> Iterator[str]:
    """A fresh, migrated database on the Postgres of your settings, dropped at the end."""
    server = ensure_running()
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(database_dsn(server, "postgres"), autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        dsn = database_dsn(server, name)
        migrate(dsn)
        yield dsn
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def bench(throwaway_dsn: str) -> Iterator[PipelineBench]:
    with tempfile.TemporaryDirectory(prefix="pg_pipeline-") as folder:
        made = PipelineBench(throwaway_dsn, Path(folder))
        yield made
        made.close()
