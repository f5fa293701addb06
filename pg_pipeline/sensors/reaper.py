"""The reaper: housekeeping in small steps. Dead runs, late reports, leavings of dead attempts, old partitions."""

import math
import time
from collections.abc import Mapping, Sequence

import dagster as dg

from pg_pipeline.assets import keys
from pg_pipeline.assets.report import Reporter
from pg_pipeline.coordination import partitions
from pg_pipeline.coordination.connect import connect
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.reaper import reap
from pg_pipeline.coordination.types import AttemptRef
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sensors.runs import report_lost_runs

STEP_SECONDS = 0.4  # for late reports and for old partitions: a tick stays short, the next goes on
REPORTS = 10  # at a time


def reaper_sensor(pipelines: Sequence[FilePipeline], name: str, *, interval: int = 15) -> dg.SensorDefinition:
    known = {pipeline.name: pipeline for pipeline in pipelines}

    @dg.sensor(
        name=f"{name}_reaper",
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports runs whose process is gone, tells what was committed and not told, and tidies up.",
    )
    def sense(context: dg.SensorEvaluationContext, coordination: CoordinationResource) -> dg.SkipReason:
        db, instance = coordination.db, context.instance
        lost = report_lost_runs(instance, db, name, list(known))
        told = report_late(instance, db, known, seconds=STEP_SECONDS)
        reaped = reap(db, lambda _sink, attempt, _location: discard(db, known, attempt), pipelines=known)
        removed = sum(remove_old_partitions(instance, db, one, seconds=STEP_SECONDS) for one in pipelines)
        return dg.SkipReason(
            f"{len(lost)} dead runs, {told} late reports, {reaped.total} rows reaped, {removed} old partitions removed."
        )

    return sense


def report_late(
    instance: dg.DagsterInstance,
    db: Database,
    pipelines: Mapping[str, FilePipeline],
    *,
    seconds: float = math.inf,
) -> int:
    """Tell Dagster of what a process committed that died before telling; once. Begins nothing new after `seconds`."""

    def write(events: Sequence[dg.AssetMaterialization]) -> None:
        for event in events:
            instance.report_runless_asset_event(event)

    reporter = Reporter(pipelines, db, instance, write)
    told, until = 0, time.monotonic() + seconds
    while reports := partitions.unreported(db, list(pipelines), REPORTS):
        told += reporter.late(reports)
        if time.monotonic() > until:
            break
    for execution in partitions.unreported_summaries(db, list(pipelines)):
        reporter.summary(execution)
        told += 1
        if time.monotonic() > until:
            break
    return told


def discard(db: Database, pipelines: Mapping[str, FilePipeline], attempt: AttemptRef) -> None:
    """Remove what an ended attempt left behind."""
    with connect(db.dsn) as conn:
        pipelines[attempt.pipeline].sink.discard(conn, attempt)


def remove_old_partitions(
    instance: dg.DagsterInstance, db: Database, pipeline: FilePipeline, *, seconds: float = math.inf
) -> int:
    """Partitions of executions that ended longer ago than the retention; their rows stay."""
    removed, until = 0, time.monotonic() + seconds
    for definition in (keys.batches_partitions(pipeline.name), keys.executions_partitions(pipeline.name)):
        assert definition.name is not None
        listed = [(key, keys.parse(key).execution) for key in instance.get_dynamic_partitions(definition.name)]
        if not listed:
            continue
        old = partitions.ended_before(db, sorted({execution for _, execution in listed}), pipeline.retention)
        for key, execution in listed:
            if execution in old:
                instance.delete_dynamic_partition(definition.name, key)
                removed += 1
                if time.monotonic() > until:
                    return removed
    return removed
