"""Dead letters and quarantined files, as observations of their partitions, and for whoever is to be told."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from pg_pipeline.assets.keys import Registrar
from pg_pipeline.assets.report import batches_asset, summary_asset
from pg_pipeline.coordination import partitions
from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.resources import CoordinationResource

# Called once per dead letter and per batch that set files aside; again only if a tick is interrupted.
Alert = Callable[[Mapping[str, Any]], None]


def dead_letters_sensor(
    pipelines: Sequence[FilePipeline], name: str, alert: Alert | None = None, *, interval: int = 15
) -> dg.SensorDefinition:
    names = [pipeline.name for pipeline in pipelines]

    @dg.sensor(
        name=f"{name}_dead_letters",
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows dead letters and quarantined files on their partitions.",
    )
    def sense(context: dg.SensorEvaluationContext, coordination: CoordinationResource) -> dg.SensorResult:
        db = coordination.db
        keys = Registrar(context.instance, db)
        letter, moment = _read(context.cursor)
        events: list[dg.AssetObservation] = []
        for one in partitions.dead_letter_news(db, names, letter):
            letter = one["id"]
            events.append(_letter(keys, one))
            _tell(alert, {"what": "dead letter", **one})
        for report in partitions.quarantine_news(db, names, moment):
            assert report.committed_at is not None
            moment = report.committed_at
            key = keys.batch(report.pipeline, report.execution, report.generation, report.number)
            said: dict[str, Any] = {
                "quarantined": report.quarantined,
                "look": f"pg-pipeline quarantine list {report.execution}",
            }
            events.append(dg.AssetObservation(batches_asset(report.pipeline), partition=key, metadata=said))
            _tell(alert, {"what": "quarantine", "pipeline": report.pipeline, "execution": report.execution, **said})
        cursor = json.dumps({"letter": letter, "moment": moment.isoformat()})
        if not events:
            return dg.SensorResult(skip_reason="No new dead letters, nothing newly quarantined.", cursor=cursor)
        return dg.SensorResult(asset_events=events, cursor=cursor)

    return sense


def _read(cursor: str | None) -> tuple[int, datetime]:
    try:
        found = json.loads(cursor or "{}")
        return int(found["letter"]), datetime.fromisoformat(found["moment"])
    except (KeyError, ValueError):
        return 0, datetime.fromtimestamp(0, UTC)


def _letter(keys: Registrar, one: Mapping[str, Any]) -> dg.AssetObservation:
    said = {
        "dead_letter": one["id"],
        "reason": one["reason"],
        "error": (one["error"] or "")[:2000],
        "attempts": one["attempts"],
        "replay": f"pg-pipeline dlq replay {one['id']}",
    }
    pipeline, execution = one["pipeline"], one["execution"]
    if execution is None:
        return dg.AssetObservation(batches_asset(pipeline), metadata=said)
    if one["kind"] == "batch" and one["batch"] is not None:
        key = keys.batch(pipeline, execution, one["generation"] or 1, one["batch"])
        return dg.AssetObservation(batches_asset(pipeline), partition=key, metadata=said)
    key = keys.execution(pipeline, execution, one["generation"] or 1)
    return dg.AssetObservation(summary_asset(pipeline), partition=key, metadata=said)


def _tell(alert: Alert | None, news: Mapping[str, Any]) -> None:
    if alert is not None:
        alert(news)
