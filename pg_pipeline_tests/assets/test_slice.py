"""The thin slice through every room: files, Dagster, Spark, Postgres, summary."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.orders import files_of_orders

pytestmark = pytest.mark.usefixtures("spark")


def test_files_become_rows_and_one_summary(
    bench: PipelineBench, make_orders: Callable[..., FilePipeline], conn: psycopg.Connection[Any]
) -> None:
    orders = make_orders()
    folder = bench.plant("day1", {**files_of_orders(5), "broken.json": "{not json", "_SUCCESS": ""})
    execution = bench.enqueue(orders, folder)
    assert len(bench.batches(execution)) == 3
    bench.drain()

    report = bench.execution(execution)
    assert (report.status, report.files, report.quarantined) == ("finished", 6, 1)
    (rows,) = conn.execute("select count(*) from analytics.orders").fetchone() or (0,)
    assert rows == report.rows_out == 25
    assert sum(row["orders"] for row in report.summary["rows"]) == 25
    assert bench.materialized(orders, "batches") == {f"{execution}~{n:05}" for n in range(3)}
    assert bench.materialized(orders, "summary") == {execution}
