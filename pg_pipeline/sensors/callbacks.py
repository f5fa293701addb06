"""Callbacks that nobody is there to run. Workers drain them too; this one is for those whose run crashed or left."""

import dagster as dg

from pg_pipeline.assets.keys import Registrar
from pg_pipeline.coordination import partitions
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sensors.runs import worker_runs


def callbacks_sensor(pipeline: FilePipeline, name: str, *, interval: int = 10) -> dg.SensorDefinition:
    """One per pipeline: a sensor's assets must share their partitions. `name` is that of its workers' job."""
    asset = dg.AssetKey([pipeline.name, "summary"])

    @dg.sensor(
        name=f"{pipeline.name}_callbacks",
        target=dg.AssetSelection.assets(asset),
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Runs the callbacks of {pipeline.name} where no worker is there to do it.",
    )
    def sense(
        context: dg.SensorEvaluationContext, coordination: CoordinationResource
    ) -> dg.SensorResult | dg.SkipReason:
        db = coordination.db
        waiting = partitions.waiting_callbacks(db, [pipeline.name])
        if not waiting:
            return dg.SkipReason("No callback waits.")
        if partitions.depth(db, pipeline.queue, [pipeline.name]).workers or worker_runs(context.instance, name):
            return dg.SkipReason("A worker is there, or on its way, and takes them.")
        keys = Registrar(context.instance, db)
        # The attempt is in the key: one crashed run must not silence its callback for ever.
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    run_key=f"{one.execution}:{one.generation}:{one.attempts}",
                    asset_selection=[asset],
                    partition_key=keys.execution(one.pipeline, one.execution, one.generation),
                )
                for one in waiting
            ]
        )

    return sense
