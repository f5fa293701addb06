"""Pipelines become Dagster definitions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import dagster as dg

from pg_pipeline.assets.aggregate import summary_asset_of
from pg_pipeline.assets.checks import checks_of
from pg_pipeline.assets.enqueue import enqueued_asset
from pg_pipeline.assets.process import worker_job
from pg_pipeline.assets.targeted import batches_asset_of
from pg_pipeline.errors import ConfigurationError
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource, SparkResource
from pg_pipeline.resources.rows import rows_io
from pg_pipeline.sensors.callbacks import callbacks_sensor
from pg_pipeline.sensors.dead_letters import Alert, dead_letters_sensor
from pg_pipeline.sensors.depth import depth_sensor
from pg_pipeline.sensors.landing import landing_sensor
from pg_pipeline.sensors.outbox import outbox_sensor
from pg_pipeline.sensors.reaper import reaper_sensor

# One object each, so that the definitions of several pipelines can be merged.
RESOURCES: dict[str, Any] = {"coordination": CoordinationResource(), "pyspark": SparkResource()}


def definitions(
    *pipelines: FilePipeline,
    name: str = "pg_pipeline",
    pool: str | None = None,
    executor: dg.ExecutorDefinition | None = dg.in_process_executor,
    max_workers: int = 1,
    alert: Alert | None = None,
    resources: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """Assets, a worker job, sensors and checks for these pipelines, which share their workers.

    `name` begins the names of the job and the sensors; `pool` limits Spark work across runs. Set `executor` to None
    where other definitions bring their own; each Spark step of a multiprocess run then starts a session.
    `max_workers` is how many worker runs the depth sensor keeps going; `alert` is called for each dead letter and each
    batch that set files aside. `resources` take the place of ours: `pyspark` for a cluster, `coordination`.
    """
    names = [pipeline.name for pipeline in pipelines]
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"definitions() needs pipelines with different names, and got {names}.")
    assets = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # backfill policies
        for pipeline in pipelines:
            limit = pipeline.pool or pool
            assets += [enqueued_asset(pipeline), batches_asset_of(pipeline, limit), summary_asset_of(pipeline, limit)]
    limits = {pipeline.pool or pool for pipeline in pipelines}
    if len(limits) > 1:
        raise ConfigurationError(
            f"{', '.join(names)} share their workers and so their pool: give them one, or definitions of their own."
        )
    job = worker_job(pipelines, name, limits.pop())
    sensors = [
        *(landing_sensor(pipeline) for pipeline in pipelines if pipeline.landing is not None),
        depth_sensor(pipelines, job, name, max_workers=max_workers),
        *(callbacks_sensor(pipeline, name) for pipeline in pipelines),
        outbox_sensor(name),
        dead_letters_sensor(pipelines, name, alert),
        reaper_sensor(pipelines, name),
    ]
    return dg.Definitions(
        assets=assets,
        asset_checks=[checks_of(pipeline) for pipeline in pipelines],
        jobs=[job],
        sensors=sensors,
        resources={
            **RESOURCES,
            **{f"{pipeline.name}_rows": rows_io(pipeline.sink) for pipeline in pipelines},
            **(resources or {}),
        },
        executor=executor,
    )
