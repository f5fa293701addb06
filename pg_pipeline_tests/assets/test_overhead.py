"""What Dagster and the protocol cost a worker run, beside the Spark work: at most a fifth."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pg_pipeline.assets import work
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.pipelines.orders import summarise_by_country
from pg_pipeline.resources.instance import dagster_home
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.orders import SCHEMA, files_of_orders

BATCHES = 200


@pytest.fixture
def stored(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PipelineBench]:
    """A bench whose Dagster keeps its events in Postgres, as in `up`."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    home = dagster_home(get_settings(dsn=dsn, state_dir=str(tmp_path / "state")))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        made = PipelineBench(dsn, tmp_path / "data", instance)
        yield made
        made.assert_audit_clean()
        made.db.close()


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_worker_run_over_200_small_batches_costs_a_fifth_more_than_its_spark_work(
    stored: PipelineBench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = FilePipeline(
        name="orders",
        format="json",
        schema=SCHEMA,
        sink=PostgresTable("analytics.orders"),
        callback=summarise_by_country,
        batch_files=1,
    )
    stored.use(orders)
    warm = stored.enqueue(orders, stored.plant("warm", files_of_orders(3)))
    stored.drain(slots=1)
    assert stored.execution(warm).status == "finished"

    spent: list[float] = []
    process: Callable[..., Any] = work.process_batch

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.monotonic()
        try:
            return process(*arguments, **options)
        finally:
            spent.append(time.monotonic() - began)

    monkeypatch.setattr(work, "process_batch", timed)
    execution = stored.enqueue(orders, stored.plant("day1", files_of_orders(BATCHES, rows=50)))
    began = time.monotonic()
    stored.drain(slots=1)
    took = time.monotonic() - began
    assert stored.execution(execution).status == "finished"
    assert len(stored.materialized(orders, "batches")) == BATCHES + 3
    with capsys.disabled():
        print(f"\n{BATCHES} batches: {took:.1f} s, of which Spark {sum(spent):.1f} s ({took / sum(spent):.2f}x)")  # noqa: T201
    assert took <= 1.2 * sum(spent)
