"""`pg-pipeline metrics`: what Prometheus scrapes from `serve`, read from the tables at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import typer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pg_pipeline.cli import shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import AsJson, emit
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.metrics import samples
from pg_pipeline.errors import PgPipelineError

# What each is, and its labels. Gauges: history is pruned, so nothing here only ever grows.
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tasks": ("Tasks in the queue, by state.", ("queue", "state")),
    "oldest_task_seconds": ("For how long the oldest ready task has waited.", ("queue",)),
    "queue_paused": ("1 while the queue is paused, by whom.", ("queue", "by")),
    "workers": ("Workers that have not stopped, by status.", ("queue", "status")),
    "executions": ("Living executions, by status.", ("pipeline", "status")),
    "attempts_recent": (
        "Attempts that ended in the last five minutes; lost: taken away, fenced: and came back too late.",
        ("queue", "kind", "outcome"),
    ),
    "attempt_seconds_recent": (
        "How long those took that were committed, from claim to finish.",
        ("queue", "kind", "quantile"),
    ),
    "finish_seconds_recent": (
        "How long their finishes took: the transaction that publishes and settles, up to its commit.",
        ("queue", "kind", "quantile"),
    ),
    "unfinished_recent": (
        "Work of the last five minutes that was done and could not finish, by why.",
        ("queue", "why"),
    ),
    "dead_letters": ("Dead letters that wait for a person.", ("queue", "pipeline", "reason")),
    "quarantined_files": ("Files in quarantine.", ("pipeline",)),
    "outbox": ("Webhooks not delivered, by state.", ("state",)),
    "outbox_oldest_seconds": ("For how long the oldest pending webhook has waited.", ()),
}


def metrics(as_json: AsJson = False) -> None:
    """Print the metrics once, as Prometheus reads them; `pg-pipeline serve` serves them."""
    with opened(reading=True) as db:
        if as_json:
            emit([{name: getattr(sample, name) for name in shapes.SAMPLE} for sample in samples(db)])
            return
        typer.echo(generate_latest(registry(db)).decode(), nl=False)


def registry(db: Database) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(_Tables(db))
    return made


class _Tables(Collector):
    def __init__(self, db: Database) -> None:
        self._db = db

    def describe(self) -> list[Any]:
        return []  # or it would be asked at registration

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """A database that is away is a number too, and no reason to stop."""
        up = GaugeMetricFamily("pg_pipeline_up", "1 while Postgres answers.")
        families = {
            name: GaugeMetricFamily(f"pg_pipeline_{name}", text, labels=labels)
            for name, (text, labels) in METRICS.items()
        }
        try:
            found = samples(self._db)
        except (psycopg.Error, PgPipelineError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        for sample in found:
            labels = METRICS[sample.name][1]
            families[sample.name].add_metric([str(sample.labels[label]) for label in labels], sample.value)
        yield from families.values()
