"""What a user of a pipeline gets of its Spark work: a schema when none was given, several batches at once, progress,
and every kind of bad file with its reason in the ledger."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pg_pipeline.assets import process
from pg_pipeline.assets.work import Bench, drain
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.progress import Progress
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.orders import files_of_orders
from pg_pipeline_tests.spark.test_bad_files import FORMATS, SCHEMA

Make = Callable[..., FilePipeline]


def test_without_a_schema_one_is_inferred_and_pinned_and_later_files_must_fit_it(
    bench: PipelineBench, make_orders: Make, spark: SparkSession, conn: Any
) -> None:
    sink = PostgresTable("visits", evolve=True)
    visits = make_orders(schema=None, transform=None, callback=None, sink=sink)

    def deliver(name: str, **row: Any) -> Any:
        execution = bench.enqueue(visits, bench.plant(name, {"a.json": [row]}))
        bench.drain()
        pinned = conn.execute("select schema from pipeline.pipeline where name = 'orders'").fetchone()
        return pinned[0], bench.execution(execution).quarantined

    pinned = "id BIGINT,page STRING"
    assert deliver("day1", id=1, page="/") == (pinned, 0)
    assert deliver("day2", id=2, page="/", user="u") == (pinned, 1), "a field that the pinned schema lacks"
    assert deliver("day3", id=3) == (pinned, 0)
    assert conn.execute("select pipeline.unpin_schema('orders')").fetchone() == (pinned,)
    assert deliver("day4", id=4, page="/", user="u") == ("id BIGINT,page STRING,user STRING", 0)
    assert conn.execute('select id, "user" from visits order by id').fetchall() == [(1, None), (3, None), (4, "u")]


def test_batches_that_look_at_once_all_use_the_schema_that_was_pinned_first(
    bench: PipelineBench, make_orders: Make, spark: SparkSession, conn: Any
) -> None:
    """Each of two workers has seen files of its own; the second to pin takes the first one's."""
    make_orders(schema=None)
    with Worker(bench.db, heartbeat_interval=0.05) as worker:
        assert worker.pin_schema("orders", None) is None
        assert worker.pin_schema("orders", "a INT") == "a INT"
        assert worker.pin_schema("orders", "b INT") == "a INT"


def test_as_many_batches_run_at_once_as_suit_the_machine_each_in_a_pool_of_its_own(
    bench: PipelineBench, make_orders: Make, spark: SparkSession, monkeypatch: Any, conn: Any
) -> None:
    monkeypatch.setattr("pg_pipeline.assets.work.batches_at_once", lambda _spark: 3)
    together = threading.Barrier(3, timeout=120)
    pools = []

    def meet(df: Any, _batch: Any) -> Any:
        pools.append(spark.sparkContext.getLocalProperty("spark.scheduler.pool"))
        together.wait()
        return df

    orders = make_orders(transform=meet, batch_files=1)
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(3)))
    with Worker(bench.db, kinds=["batch"], heartbeat_interval=0.05) as worker:
        outcomes = [o for o in drain(Bench(worker, {"orders": orders}, lambda: spark, bench.dsn), linger=0.0) if o]
    assert sorted(pools) == ["pg_pipeline-0", "pg_pipeline-1", "pg_pipeline-2"]
    assert [outcome.status for outcome in outcomes] == ["committed"] * 3
    assert [batch.rows_out for batch in bench.batches(execution)] == [5] * 3
    bench.drain()


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_progress_reaches_dagster_and_the_terminal(
    bench: PipelineBench, make_orders: Make, spark: SparkSession, monkeypatch: Any, capfd: Any, reader: str
) -> None:
    """A batch that takes its time is spoken of while it runs, and every batch once it is in."""
    TOLD.clear()
    monkeypatch.setattr(process, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("pg_pipeline.assets.work.TICK", 0.05)
    held = make_orders(reader=reader, batch_files=4, sink=Held("analytics.orders"))
    files = files_of_orders(4)
    bench.enqueue(held, bench.plant("day1", files))
    monkeypatch.setattr(Progress, "__str__", _noticed)
    result = bench.drain()
    messages = [entry.user_message for entry in bench.instance.all_logs(result.run_id)]
    size = sum(path.stat().st_size for path in (bench.folder / "day1").iterdir())
    done = f"4 of 4 files, {size / 1000:.1f} kB of {size / 1000:.1f} kB, 20 rows, "
    assert any(m.startswith("1 under way: 4 of 4 files") for m in messages), messages
    (committed,) = [m for m in messages if m.startswith("batch 0 of execution")]
    assert done in committed
    assert "1 under way" in capfd.readouterr().err


TOLD = threading.Event()


class Held(PostgresTable):
    """Publishes only once somebody was told how far it is."""

    def publish(self, *arguments: Any) -> int:
        assert TOLD.wait(60)
        return super().publish(*arguments)


def _noticed(progress: Progress, text: Callable[[Progress], str] = Progress.__str__) -> str:
    if progress.files_done == progress.files:
        TOLD.set()
    return text(progress)


@pytest.mark.parametrize(("file_format", "reader"), [*((f, "auto") for f in FORMATS), ("json", "spark")])
def test_every_kind_of_bad_file_is_in_the_ledger_with_its_reason(
    bench: PipelineBench, make_orders: Make, spark: SparkSession, conn: Any, file_format: str, reader: str
) -> None:
    kinds, good = FORMATS[file_format]
    victim = bench.folder / "day1" / f"lost.{file_format}"

    def lose(df: Any, _batch: Any) -> Any:
        victim.unlink(missing_ok=True)
        return df

    orders = make_orders(
        format=file_format, schema=SCHEMA, reader=reader, transform=lose, callback=None, batch_files=100
    )
    others = {f"{name}.{file_format}": good for name in ("good", "gone", "changed", "lost")}
    day = bench.plant("day1", {name: data for name, data, _ in kinds} | others)
    execution = bench.enqueue(orders, day)
    (day / f"gone.{file_format}").unlink()
    (day / f"changed.{file_format}").write_bytes(good + b"\n")
    bench.drain()
    # The Arrow reader looks for the first time when it reads: to it, the file was never there.
    lost = "vanished" if reader == "spark" else "missing"
    expected = {name: reason for name, _, reason in kinds} | {
        f"gone.{file_format}": "missing",
        f"changed.{file_format}": "changed",
        f"lost.{file_format}": lost,
    }
    rows = conn.execute("select path, state, reason, detail from pipeline.file").fetchall()
    found = {Path(path).name: (state, reason) for path, state, reason, _ in rows}
    assert found.pop(f"good.{file_format}") == (None, None)
    assert found == {name: ("quarantined", reason) for name, reason in expected.items()}
    assert all(detail for _, state, _, detail in rows if state == "quarantined")
    report = bench.execution(execution)
    assert (report.status, report.rows_out, report.quarantined) == ("finished", 2, len(expected))
