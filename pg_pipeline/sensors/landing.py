"""Landing: new and changed files, by delivery. A tick lists for a moment from its cursor; the enqueue asset scans
everything and submits, so a tick that is repeated or interrupted changes nothing."""

import json
import time
from dataclasses import asdict, dataclass

import dagster as dg

from pg_pipeline.assets.enqueue import REQUEST_TAG
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.partitions import known_requests
from pg_pipeline.pipelines import landing
from pg_pipeline.pipelines.delivery import Delivery
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sensors.runs import EVERY_LOOP, GOING, WAITING

TICK_SECONDS = 0.5
RETRY_SECONDS = 30.0


@dataclass(slots=True)
class _Cursor:
    """Where the listing is; of loose files also the newest change and whether any is new, since it began."""

    after: str | None = None
    newest: float = 0.0
    fresh: bool = False

    @classmethod
    def read(cls, text: str | None) -> "_Cursor":
        try:
            return cls(**json.loads(text or "{}"))
        except (TypeError, ValueError):
            return cls()  # of another release: begin again


def landing_sensor(pipeline: FilePipeline, *, interval: int = EVERY_LOOP) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{pipeline.name}_landing",
        target=dg.AssetSelection.assets([pipeline.name, "enqueued"]),
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Submits what lands in {pipeline.landing} ({pipeline.delivery}).",
    )
    def sense(
        context: dg.SensorEvaluationContext, coordination: CoordinationResource
    ) -> dg.SensorResult | dg.SkipReason:
        waits = _waits(context.instance, pipeline)
        if waits:
            return dg.SkipReason(waits)
        db = coordination.db
        submission.register_pipeline(db, pipeline.name, **pipeline.registration)
        cursor = _Cursor.read(context.cursor)
        found = _look(pipeline, db, cursor)
        written = json.dumps(asdict(cursor))
        if not found:
            return dg.SensorResult(skip_reason="Nothing new has landed.", cursor=written)
        request = dg.RunRequest(run_key=None, tags={REQUEST_TAG: pipeline.name})
        return dg.SensorResult(run_requests=[request], cursor=written)

    return sense


def _look(pipeline: FilePipeline, db: Database, cursor: _Cursor) -> bool:
    """List on from the cursor for a moment; whether there is something to submit."""
    delivery = Delivery.parse(pipeline.delivery)
    until = time.monotonic() + TICK_SECONDS
    while True:
        page = landing.page(pipeline, cursor.after)
        cursor.after = page.cursor
        if delivery.kind == "quiet":
            cursor.newest = max(cursor.newest, page.newest)
            cursor.fresh = cursor.fresh or any(_has_new(pipeline, db, one) for one in page.found)
            if page.cursor is None:  # the whole folder was seen
                ready = cursor.fresh and time.time() - cursor.newest >= delivery.quiet_seconds
                cursor.newest, cursor.fresh = 0.0, False
                return ready
        else:
            known = known_requests(db, pipeline.name, [one.request_key for one in page.found])
            if any(one.request_key not in known and _has_new(pipeline, db, one) for one in page.found):
                return True
            if page.cursor is None:
                return False
        if time.monotonic() > until:
            return False


def _has_new(pipeline: FilePipeline, db: Database, found: landing.Found) -> bool:
    return any(v.verdict == "take" for v in submission.preview(db, pipeline.name, found.files))


def _waits(instance: dg.DagsterInstance, pipeline: FilePipeline) -> str | None:
    """Why nothing is to be launched now: a run is under way, or the last ones failed a short while ago."""
    records = instance.get_run_records(dg.RunsFilter(tags={REQUEST_TAG: pipeline.name}), limit=5)
    if any(record.dagster_run.status in (*GOING, *WAITING) for record in records):
        return "A submission is under way."
    failures = 0
    for record in records:
        if record.dagster_run.status != dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    if failures and records[0].end_time:
        left = records[0].end_time + RETRY_SECONDS * 2 ** (failures - 1) - time.time()
        if left > 0:
            return f"The last {failures} submission(s) failed: the next is tried in {left:.0f} s."
    return None
