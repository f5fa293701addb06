"""Many events in one write. All that needs Dagster's internals is here; the public `log_event` is the fallback.

One event costs Dagster's Postgres storage about 30 ms; 500 in one batch cost as much as ten.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

_log = logging.getLogger("pg_pipeline.events")
BATCH = 500
_VARIABLE = "DAGSTER_EVENT_BATCH_SIZE"

Context = dg.OpExecutionContext | dg.AssetExecutionContext
Event = dg.AssetMaterialization | dg.AssetObservation


def log_events(context: Context, events: Sequence[Event]) -> None:
    """Write the events of this run, together where Dagster can."""
    if len(events) > 1 and _log_together(context, events):
        return
    for event in events:
        context.log_event(event)


def report_planned(instance: dg.DagsterInstance, run: dg.DagsterRun, step: str, asset: dg.AssetKey, key: str) -> None:
    """Say that this run meant to make the partition: with its failure, that is what shows the partition as failed."""
    from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent

    planned = DagsterEvent.build_asset_materialization_planned_event(
        run.job_name, step, AssetMaterializationPlannedData(asset, partition=key)
    )
    instance.report_dagster_event(planned, run.run_id, logging.DEBUG)


def _log_together(context: Context, events: Sequence[Event]) -> bool:
    try:
        from dagster._core.events import DagsterEvent, DagsterEventBatchMetadata, generate_event_batch_id

        step = context.get_step_execution_context()
        make: dict[type, Callable[..., Any]] = {
            dg.AssetMaterialization: DagsterEvent.asset_materialization,
            dg.AssetObservation: DagsterEvent.asset_observation,
        }
    except (ImportError, AttributeError) as error:
        _log.warning("Dagster's batch of events is not where it was (%s): writing one by one.", error)
        return False
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(BATCH)  # read at each event; without it Dagster ignores the batch
    try:
        for start in range(0, len(events), BATCH):
            chunk = events[start : start + BATCH]
            identity = generate_event_batch_id()  # type: ignore[no-untyped-call]
            for number, event in enumerate(chunk):
                last = number == len(chunk) - 1
                make[type(event)](step, event, DagsterEventBatchMetadata(identity, last))
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
    return True
