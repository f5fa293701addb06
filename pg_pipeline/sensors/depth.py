"""Queue depth: how many worker runs to start, from what is ready, who lives, who was just launched, and the limit."""

import math
import time
from collections.abc import Sequence

import dagster as dg

from pg_pipeline.assets.process import DEAD_TAG, QUEUE_TAG, WORKER_TAG
from pg_pipeline.coordination import partitions, submission
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sensors.runs import EVERY_LOOP, WAITING, YOUNG, waiting_for_slots, worker_runs

REST_SECONDS = 10.0  # after the second run in a row that failed, then twice as long each time
REMEMBERED = 8


def depth_sensor(
    pipelines: Sequence[FilePipeline],
    job: dg.JobDefinition,
    name: str,
    *,
    max_workers: int = 1,
    batches_per_worker: int = 20,
    interval: int = EVERY_LOOP,
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
            rest = _rest(context.instance, name, queue) if wanted > 0 else 0.0
            if rest > 0:
                said.append(f"the last worker runs failed: the next is tried in {rest:.0f} s")
                continue
            config = {"ops": {f"{name}_drain": {"config": {"queue": queue}}}}
            # No run key: a key is permanent, and would silence later work for ever.
            requests += [dg.RunRequest(run_key=None, run_config=config, tags={QUEUE_TAG: queue}) for _ in range(wanted)]
        if not requests:
            return dg.SkipReason("; ".join(said) + ".")
        return dg.SensorResult(run_requests=requests)

    return sense


def _rest(instance: dg.DagsterInstance, name: str, queue: str) -> float:
    """How long to wait after runs that failed one after the other, such as for want of Java: no storm of runs. The
    first is tried again at once, and runs that failed for dead letters did their work."""
    records = instance.get_run_records(dg.RunsFilter(tags={WORKER_TAG: name}), limit=REMEMBERED)
    failed = 0
    mine = [record for record in records if record.dagster_run.tags.get(QUEUE_TAG, "default") == queue]
    for record in mine:
        if record.dagster_run.status != dg.DagsterRunStatus.FAILURE or DEAD_TAG in record.dagster_run.tags:
            break
        failed += 1
    if failed < 2:
        return 0.0
    ended: float = mine[0].end_time or mine[0].update_timestamp.timestamp()
    return ended + REST_SECONDS * float(2 ** (failed - 2)) - time.time()


def _young(instance: dg.DagsterInstance, name: str, queue: str, live: Sequence[str]) -> int:
    """Runs that wait, in the queue or for a slot, or that started so shortly ago that their worker's row may not be
    there yet."""
    count = 0
    old = []
    for record in worker_runs(instance, name):
        run = record.dagster_run
        if run.run_id in live or run.tags.get(QUEUE_TAG, "default") != queue:
            continue
        age = time.time() - (record.start_time or record.create_timestamp.timestamp())
        if run.status in WAITING or age < YOUNG.total_seconds():
            count += 1
        else:
            old.append(run.run_id)
    return count + (len(waiting_for_slots(instance).intersection(old)) if old else 0)
