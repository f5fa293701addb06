"""`pg-pipeline metrics`: what Prometheus scrapes, read from the tables at each scrape."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Annotated, Any

import psycopg
import typer
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import say
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.metrics import samples
from pg_pipeline.errors import ConfigurationError, PgPipelineError

# What each is, and its labels. Gauges: history is pruned, so nothing here only ever grows.
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tasks": ("Tasks in the queue, by state.", ("queue", "state")),
    "oldest_task_seconds": ("For how long the oldest ready task has waited.", ("queue",)),
    "queue_paused": ("1 while the queue is paused, by whom.", ("queue", "by")),
    "workers": ("Workers that have not stopped, by status.", ("queue", "status")),
    "executions": ("Living executions, by status.", ("pipeline", "status")),
    "attempts_recent": (
        "Attempts that ended in the last five minutes; lost: taken away, fenced: done, but could not finish.",
        ("queue", "kind", "outcome"),
    ),
    "attempt_seconds_recent": (
        "How long those took that were committed, finish included.",
        ("queue", "kind", "quantile"),
    ),
    "dead_letters": ("Dead letters that wait for a person.", ("queue", "pipeline", "reason")),
    "quarantined_files": ("Files in quarantine.", ("pipeline",)),
    "outbox": ("Webhooks not delivered, by state.", ("state",)),
    "outbox_oldest_seconds": ("For how long the oldest pending webhook has waited.", ()),
}


def metrics(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0: print once and end.")] = 0,
    address: Annotated[str, typer.Option(help="On which address.")] = "127.0.0.1",
) -> None:
    """Serve metrics for Prometheus, or print them once."""
    registry = CollectorRegistry()
    with opened() as db:
        registry.register(_Tables(db))
        if not port:
            typer.echo(generate_latest(registry).decode(), nl=False)
            return
        try:
            start_http_server(port, address, registry=registry)
        except OSError as error:
            raise ConfigurationError(
                f"Nothing can listen on {address}:{port} ({error.strerror}): choose another --port."
            ) from None
        say(f"Metrics are at {address}:{port}/metrics, until Ctrl-C.")
        threading.Event().wait()


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
