"""Landing: new and changed files, by delivery. A tick lists for a moment from its cursor; the enqueue asset lists again
and submits, so a tick that is repeated or interrupted changes nothing.

Between two listings of everything only what sorts after the watermark is listed: dated names are found at once, and
what came in elsewhere with the next listing of everything.
"""

import json
import time
from dataclasses import asdict, dataclass

import dagster as dg

from pg_pipeline.assets.enqueue import REQUEST_TAG
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.partitions import known_requests
from pg_pipeline.pipelines import landing
from pg_pipeline.pipelines.arrival import has_new
from pg_pipeline.pipelines.delivery import Delivery
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.sensors.runs import EVERY_LOOP, GOING, WAITING
from pg_pipeline.storage.entry import GROWING_SECONDS

TICK_SECONDS = 0.5
RETRY_SECONDS = 30.0


@dataclass(slots=True)
class _Cursor:
    """Where the listing is, and where it began; of loose files also the newest change and whether any is new since.
    `high` is the watermark, `scanned` when everything was last listed to its end."""

    after: str | None = None
    began: str = ""
    newest: float = 0.0
    fresh: bool = False
    high: str = ""
    scanned: float = 0.0

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
        if found is None:
            return dg.SensorResult(skip_reason="Nothing new has landed.", cursor=written)
        config = {"ops": {f"{pipeline.name}__enqueued": {"config": {"since": found}}}} if found else {}
        request = dg.RunRequest(run_key=None, run_config=config, tags={REQUEST_TAG: pipeline.name})
        return dg.SensorResult(run_requests=[request], cursor=written)

    return sense


def _look(pipeline: FilePipeline, db: Database, cursor: _Cursor) -> str | None:
    """List on from the cursor for a moment; after which path there is something to submit, None for nowhere."""
    delivery = Delivery.parse(pipeline.delivery)
    until = time.monotonic() + TICK_SECONDS
    if cursor.after is None:
        due = time.time() - cursor.scanned >= pipeline.rescan_seconds
        cursor.began = "" if due else cursor.high
        cursor.newest, cursor.fresh = 0.0, False
    while True:
        page = landing.page(pipeline, cursor.began if cursor.after is None else cursor.after)
        cursor.after = page.cursor
        if delivery.kind == "quiet":
            cursor.newest = max(cursor.newest, page.newest)
            cursor.fresh = cursor.fresh or any(has_new(db, pipeline, one.files) for one in page.found)
            if page.cursor is None:  # all was seen
                ready = cursor.fresh and time.time() - cursor.newest >= delivery.quiet_seconds
                growing = cursor.newest > time.time() - GROWING_SECONDS
                _end(cursor, cursor.high if cursor.fresh or growing else page.last)
                return cursor.began if ready else None
        else:
            known = known_requests(db, pipeline.name, [one.request_key for one in page.found])
            if any(one.request_key not in known and has_new(db, pipeline, one.files) for one in page.found):
                return cursor.began
            if page.cursor is None:
                # The last folder is listed again: its marker may sort before what is in it.
                _end(cursor, page.last.rpartition("/")[0] + "/" if "/" in page.last else "")
                return None
        if time.monotonic() > until:
            return None


def _end(cursor: _Cursor, high: str) -> None:
    if not cursor.began:
        cursor.scanned = time.time()
    cursor.high = max(high, cursor.began)


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
