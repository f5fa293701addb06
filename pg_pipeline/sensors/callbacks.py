"""Callbacks that nobody is there to run. Workers drain them too; this one is for those whose run crashed or left."""

from collections.abc import Sequence

import dagster as dg

from pg_pipeline.assets.keys import Registrar
from pg_pipeline.coordination import partitions
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sensors.runs import worker_runs


def callbacks_sensor(pipelines: Sequence[FilePipeline], name: str, *, interval: int = 10) -> dg.SensorDefinition:
    names = [pipeline.name for pipeline in pipelines]
    queues = {pipeline.name: pipeline.queue for pipeline in pipelines}
    # A job per pipeline: assets whose partitions differ can't be one sensor's target.
    jobs = {one: dg.define_asset_job(f"{one}_callback", selection=[dg.AssetKey([one, "summary"])]) for one in names}

    @dg.sensor(
        name=f"{name}_callbacks",
        jobs=list(jobs.values()),
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Runs the callbacks of executions that are all in, where no worker is there to do it.",
    )
    def sense(
        context: dg.SensorEvaluationContext, coordination: CoordinationResource
    ) -> dg.SensorResult | dg.SkipReason:
        db = coordination.db
        waiting = partitions.waiting_callbacks(db, names)
        if not waiting:
            return dg.SkipReason("No callback waits.")
        served = {queue for queue in set(queues.values()) if partitions.depth(db, queue, names).workers}
        waiting = [one for one in waiting if queues[one.pipeline] not in served]
        if not waiting or worker_runs(context.instance, name):
            return dg.SkipReason("A worker is there, or on its way, and takes them.")
        keys = Registrar(context.instance, db)
        # The attempt is in the key: one crashed run must not silence its callback for ever.
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    run_key=f"{one.execution}:{one.generation}:{one.attempts}",
                    job_name=jobs[one.pipeline].name,
                    partition_key=keys.execution(one.pipeline, one.execution, one.generation),
                )
                for one in waiting
            ]
        )

    return sense
