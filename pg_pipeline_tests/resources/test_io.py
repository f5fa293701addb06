"""Frames in and out of Postgres: only committed rows, the partitions asked for, the type asked for."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pg_pipeline.coordination import executions
from pg_pipeline.coordination.database import Database
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.resources import CoordinationResource, PostgresIOManager, SparkResource
from pg_pipeline.testing import PipelineBench
from pg_pipeline_tests.orders import files_of_orders

Make = Callable[..., FilePipeline]
DAYS = dg.StaticPartitionsDefinition(["mon", "tue, wed", "it's"])

TABLE = pa.table(
    {
        "n": pa.array([1, 2, None], pa.int32()),
        "big": pa.array([2**40, None, -1], pa.int64()),
        "x": pa.array([1.5, float("inf"), None]),
        "ok": pa.array([True, None, False]),
        "text": pa.array(["", None, 'a "quoted", line\nand another']),
        "price": pa.array([Decimal("1.20"), None, Decimal("-3.05")], pa.decimal128(10, 2)),
        "day": pa.array([date(2026, 11, 18), None, date(1, 1, 1)]),
        "at": pa.array([datetime(2026, 11, 18, 8, 0, 0, 123456, UTC), None, None], pa.timestamp("us", "UTC")),
        "raw": pa.array([b"\x00\xff", None, b""]),
    }
)


def asset_of(value: Any, **options: Any) -> dg.AssetsDefinition:
    @dg.asset(name="things", io_manager_key="io", **options)
    def things() -> Any:
        return value

    return things


def load(kind: Any, dsn: str) -> Any:
    """What a downstream asset gets that asks for this type."""
    got: list[Any] = []

    def reader(things):  # type: ignore[no-untyped-def]
        got.append(things)

    reader.__annotations__ = {"things": kind, "return": None}
    downstream = dg.asset(io_manager_key="none")(reader)
    source = dg.AssetSpec("things").with_io_manager_key("io")
    result = dg.materialize(
        [source, downstream],
        selection=[downstream],
        resources={"io": PostgresIOManager(dsn=dsn), "none": dg.mem_io_manager},
    )
    assert result.success
    return got[0]


def store(value: Any, dsn: str, partition: str | None = None, **options: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset_of(value, **options)], resources={"io": PostgresIOManager(dsn=dsn)}, partition_key=partition
    )


def test_every_kind_of_value_comes_back_as_it_was(dsn: str) -> None:
    result = store(TABLE, dsn)
    (told,) = result.asset_materializations_for_node("things")
    columns = told.metadata["dagster/column_schema"].schema.columns  # type: ignore[attr-defined]
    assert [(column.name, column.type) for column in columns][:2] == [("n", "integer"), ("big", "bigint")]
    assert told.metadata["dagster/row_count"].value == 3
    assert load(pa.Table, dsn).sort_by("text").to_pylist() == TABLE.sort_by("text").to_pylist()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.Table, DataFrame])
def test_frames_of_every_make_go_in_and_out(dsn: str, kind: Any, spark: SparkSession) -> None:
    rows = pa.table({"a": [1, 2], "b": ["x", None]})
    made = {
        pd.DataFrame: rows.to_pandas(),
        pl.DataFrame: pl.from_arrow(rows),
        pa.Table: rows,
        DataFrame: spark.createDataFrame(rows),
    }
    store(made[kind], dsn)
    got = load(kind, dsn)
    assert isinstance(got, kind)
    plain = got.toArrow() if kind is DataFrame else got if kind is pa.Table else None
    count = plain.num_rows if plain is not None else len(got)
    assert count == 2


def test_a_partition_is_overwritten_and_the_others_stay(dsn: str, conn: psycopg.Connection[Any]) -> None:
    for day, values in (("mon", [1, 2]), ("tue, wed", [3]), ("it's", [4]), ("mon", [5])):
        store(pa.table({"n": values}), dsn, partition=day, partitions_def=DAYS)
    found = conn.execute("select n, _partition from public.things order by n").fetchall()
    assert found == [(3, "tue, wed"), (4, "it's"), (5, "mon")]


def test_a_reader_gets_one_or_many_partitions(dsn: str) -> None:
    for day, value in (("mon", 1), ("tue, wed", 2), ("it's", 3)):
        store(pa.table({"n": [value]}), dsn, partition=day, partitions_def=DAYS)
    got: list[list[int]] = []
    things = asset_of(None, partitions_def=DAYS)

    @dg.asset(partitions_def=DAYS, io_manager_key="none")
    def one(things: pd.DataFrame) -> None:
        got.append(sorted(things["n"]))

    @dg.asset(io_manager_key="none")
    def every(things: pd.DataFrame) -> None:
        got.append(sorted(things["n"]))

    resources = {"io": PostgresIOManager(dsn=dsn), "none": dg.mem_io_manager}
    dg.materialize([things, one], selection=[one], partition_key="it's", resources=resources)
    dg.materialize([things, every], selection=[every], resources=resources)
    assert got == [[3], [1, 2, 3]]


def test_a_write_that_fails_shows_the_old_rows(dsn: str, conn: psycopg.Connection[Any]) -> None:
    store(pa.table({"n": [1]}), dsn)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        store(pa.table({"other": [2]}), dsn)
    assert conn.execute("select * from public.things").fetchall() == [(1,)]


def test_a_table_can_be_named(dsn: str, conn: psycopg.Connection[Any]) -> None:
    store(pa.table({"n": [1]}), dsn, metadata={"table": "analytics.named"})
    assert conn.execute("select n from analytics.named").fetchall() == [(1,)]


def test_a_downstream_asset_takes_committed_rows_just_by_naming_them(
    bench: PipelineBench, make_orders: Make, spark: SparkSession
) -> None:
    orders = make_orders()
    execution = bench.enqueue(orders, bench.plant("day1", files_of_orders(4)))
    bench.materialize(orders, "batches", partition=f"{execution}~00000")
    got: dict[str, Any] = {}

    @dg.asset(ins={"batches": dg.AssetIn(["orders", "batches"])}, io_manager_key="none")
    def everything(batches: DataFrame) -> None:
        got["rows"] = batches.count()

    @dg.asset(
        ins={"batches": dg.AssetIn(["orders", "batches"])},
        partitions_def=dg.DynamicPartitionsDefinition(name="orders_batches"),
        io_manager_key="none",
    )
    def each(batches: pd.DataFrame) -> None:
        got["batch"] = set(batches["_batch"])

    made = orders.definitions()
    assets: list[Any] = [*(made.assets or ()), everything, each]
    resources = {**(made.resources or {}), **bench.resources, "none": dg.mem_io_manager}
    dg.materialize(assets, selection=[everything], instance=bench.instance, resources=resources)
    assert got["rows"] == 10  # of the committed batch only
    bench.drain()
    key = f"{execution}~00001"
    dg.materialize(assets, selection=[each], partition_key=key, instance=bench.instance, resources=resources)
    assert got["batch"] == {1}
    other = bench.enqueue(orders, bench.plant("day2", {"x.json": files_of_orders(1)["0000.json"]}))
    bench.drain()

    @dg.asset(
        ins={"batches": dg.AssetIn(["orders", "batches"], partition_mapping=dg.AllPartitionMapping())},
        partitions_def=dg.DynamicPartitionsDefinition(name="orders_executions"),
        backfill_policy=dg.BackfillPolicy.single_run(),
        io_manager_key="none",
    )
    def of_executions(batches: pd.DataFrame) -> None:
        got["executions"] = set(batches["_execution"])

    ends = {"start": execution, "end": other}
    span = {f"dagster/asset_partition_range_{end}": key for end, key in ends.items()}
    readers = [*assets, of_executions]
    dg.materialize(readers, selection=[of_executions], tags=span, instance=bench.instance, resources=resources)
    assert got["executions"] == {execution, other}
    dg.materialize(
        readers, selection=[of_executions], partition_key=other, instance=bench.instance, resources=resources
    )
    assert got["executions"] == {other}
    bench.instance.delete_dynamic_partition("orders_batches", f"{execution}~00000")
    dg.materialize(assets, selection=[everything], instance=bench.instance, resources=resources)
    assert got["rows"] == 25  # also those whose partition is no longer listed


@pytest.mark.usefixtures("spark")
def test_resources_work_in_plain_unit_tests(dsn: str) -> None:
    coordination = CoordinationResource(dsn=dsn)
    assert coordination.db.value("select 1") == 1
    coordination.db.close()
    assert SparkResource().spark_session.range(3).count() == 3


def test_a_run_says_that_it_lives_before_its_steps_and_says_goodbye_after_them(dsn: str) -> None:
    """Its resource does, and so before a step waits for its pool and before Spark starts; nobody takes it for one that
    works."""
    seen: list[dict[str, Any]] = []

    @dg.op
    def step(context: dg.OpExecutionContext, coordination: CoordinationResource) -> None:
        seen.extend(row for row in executions.workers(coordination.db) if row["run_id"] == context.run.run_id)
        seen.append(executions.queues(coordination.db)[0])

    @dg.job
    def job() -> None:
        step()

    ran = job.execute_in_process(resources={"coordination": CoordinationResource(dsn=dsn)})
    assert [row["status"] for row in seen[:-1]] == ["alive"]
    assert seen[-1]["workers"] == 0
    with Database(dsn) as db:
        assert [(w["run_id"], w["status"]) for w in executions.workers(db)] == [(ran.run_id, "stopped")]
