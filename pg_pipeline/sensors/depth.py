"""Queue depth: how many worker runs to start, from what is ready, who lives, who was just launched, and the limit."""

import math
import time
from collections.abc import Sequence

import dagster as dg

from pg_pipeline.assets.process import QUEUE_TAG
from pg_pipeline.coordination import partitions, submission
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sensors.runs import WAITING, YOUNG, worker_runs


def depth_sensor(
    pipelines: Sequence[FilePipeline],
    job: dg.JobDefinition,
    name: str,
    *,
    max_workers: int = 1,
    batches_per_worker: int = 20,
    interval: int = 5,
) -> dg.SensorDefinition:
    queues: dict[str, list[str]] = {}
    for pipeline in pipelines:
        queues.setdefault(pipeline.queue, []).append(pipeline.name)

    @dg.sensor(
        name=f"{name}_depth",
        job=job,
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts worker runs, at most {max_workers} at a time and queue.",
    )
    def sense(
        context: dg.SensorEvaluationContext, coordination: CoordinationResource
    ) -> dg.SensorResult | dg.SkipReason:
        db = coordination.db
        requests, said = [], []
        for pipeline in pipelines:
            submission.register_pipeline(db, pipeline.name, **pipeline.registration)
        for queue, names in queues.items():
            depth = partitions.depth(db, queue, names)
            if depth.paused:
                said.append(f"queue {queue} is paused")
                continue
            young = _young(context.instance, name, queue, depth.runs)
            ready = depth.batches
            wanted = min(max_workers, math.ceil(ready / batches_per_worker)) - depth.workers - young
            said.append(f"queue {queue}: {ready} ready, {depth.workers} workers, {young} on their way")
            config = {"ops": {f"{name}_drain": {"config": {"queue": queue}}}}
            # No run key: a key is permanent, and would silence later work for ever.
            requests += [dg.RunRequest(run_key=None, run_config=config, tags={QUEUE_TAG: queue}) for _ in range(wanted)]
        if not requests:
            return dg.SkipReason("; ".join(said) + ".")
        return dg.SensorResult(run_requests=requests)

    return sense


def _young(instance: dg.DagsterInstance, name: str, queue: str, live: Sequence[str]) -> int:
    """Runs that wait, or started so shortly ago that their worker's row may not be there yet."""
    count = 0
    for record in worker_runs(instance, name):
        run = record.dagster_run
        if run.run_id in live or run.tags.get(QUEUE_TAG, "default") != queue:
            continue
        age = time.time() - (record.start_time or record.create_timestamp.timestamp())
        count += run.status in WAITING or age < YOUNG.total_seconds()
    return count
