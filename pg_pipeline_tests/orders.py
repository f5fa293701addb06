"""What the tests of Dagster's face share: a bench with the orders pipeline, on this run's own server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.pipelines.orders import summarise_by_country
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.testing import PipelineBench

SCHEMA = "order_id long, customer string, amount decimal(12,2), country string, at timestamp"


def order(number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "order_id": number,
        "customer": f"c{number % 7}",
        "amount": number % 50 + 0.25,
        "country": ("DE", "FR", "SE")[number % 3],
        "at": f"2026-11-18T08:{number % 60:02}:00Z",
    }
    return {**row, **changes}


def files_of_orders(count: int, rows: int = 5) -> dict[str, list[dict[str, Any]]]:
    return {f"{n:04}.json": [order(n * rows + r) for r in range(rows)] for n in range(count)}


@pytest.fixture
def bench(dsn: str, tmp_path: Path) -> Iterator[PipelineBench]:
    """Every test ends with a clean audit."""
    made = PipelineBench(dsn, tmp_path)
    yield made
    made.assert_audit_clean()
    made.close()


@pytest.fixture
def make_orders(bench: PipelineBench) -> Callable[..., FilePipeline]:
    def make(queue_settings: dict[str, Any] | None = None, **changes: Any) -> FilePipeline:
        settings: dict[str, Any] = {
            "name": "orders",
            "landing": bench.folder,
            "format": "json",
            "schema": SCHEMA,
            "transform": lambda df, _batch: df.where("amount > 0"),
            "sink": PostgresTable("analytics.orders"),
            "callback": summarise_by_country,
            "batch_files": 2,
        }
        pipeline = FilePipeline(**{**settings, **changes})
        bench.use(pipeline, queue=queue_settings)
        return pipeline

    return make
