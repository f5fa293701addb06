"""Definitions load, merge, and refuse what is wrong in one sentence."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from pg_pipeline.definitions import defs
from pg_pipeline.errors import ConfigurationError
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.pipelines.orders import orders
from pg_pipeline.pipelines.web_events import web_events
from pg_pipeline.resources import SparkResource
from pg_pipeline.sinks.postgres import PostgresTable

GOOD: dict[str, Any] = {
    "name": "orders",
    "format": "json",
    "schema": "order_id long, amount decimal(12,2)",
    "sink": PostgresTable("analytics.orders"),
}


def test_the_default_code_location_loads_with_every_sensor_on() -> None:
    dg.Definitions.validate_loadable(defs)
    sensors = {sensor.name: sensor.default_status for sensor in defs.sensors or ()}  # type: ignore[union-attr]
    assert set(sensors.values()) == {dg.DefaultSensorStatus.RUNNING}
    assert {"orders_landing", "web_events_landing", "pg_pipeline_depth", "pg_pipeline_reaper"} <= set(sensors)


def test_pipelines_merge_with_each_other_and_with_a_users_own() -> None:
    @dg.asset(deps=[dg.AssetKey(["orders", "summary"])])
    def mine() -> None: ...

    merged = dg.Definitions.merge(orders.definitions(), web_events.definitions(), dg.Definitions(assets=[mine]))
    dg.Definitions.validate_loadable(merged)
    assert {job.name for job in merged.jobs or ()} == {"orders_worker", "web_events_worker"}  # type: ignore[union-attr]


def test_a_users_resource_takes_the_place_of_ours() -> None:
    cluster = SparkResource(spark_config={"spark.master": "spark://cluster:7077"})
    loaded = orders.definitions(resources={"pyspark": cluster})
    dg.Definitions.validate_loadable(loaded)
    assert loaded.resources is not None
    assert loaded.resources["pyspark"] is cluster
    assert set(loaded.resources) == set(orders.definitions().resources or ())


def test_what_a_user_writes_needs_four_arguments() -> None:
    pipeline = FilePipeline(**GOOD)
    assert pipeline.patterns[:2] == ("*.json", "*.json.gz")
    dg.Definitions.validate_loadable(pipeline.definitions())


def test_a_pool_limits_every_spark_step() -> None:
    from pg_pipeline.pipelines.build import definitions

    made = definitions(FilePipeline(**GOOD), pool="spark")
    pools = {asset.key.path[-1]: asset.op.pool for asset in made.assets or ()}  # type: ignore[union-attr]
    assert pools == {"enqueued": None, "batches": "spark", "summary": "spark"}
    assert [node.definition.pool for job in made.jobs or () for node in job.graph.nodes] == ["spark"]  # type: ignore[union-attr]
    made = definitions(FilePipeline(**GOOD, pool="mine"))
    assert [node.definition.pool for job in made.jobs or () for node in job.graph.nodes] == ["mine"]  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="share their workers and so their pool"):
        definitions(FilePipeline(**GOOD, pool="mine"), FilePipeline(**{**GOOD, "name": "other"}))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "My Orders"}, "The pipeline name 'My Orders' is not valid"),
    ({"format": "xml"}, "format is 'xml': use one of json, csv, parquet"),
    ({"delivery": "hourly"}, "delivery is 'hourly': use 'folder'"),
    ({"delivery": "quiet:soon"}, "delivery is 'quiet:soon'"),
    ({"schema": "order_id lnog"}, "the type 'lnog', which Spark does not know"),
    ({"schema": "order_id"}, "where a name and a type belong"),
    ({"schema": "a long, A string"}, "names a twice"),
    ({"schema": "a array<long"}, "a bracket that does not close"),
    ({"sink": "analytics.orders"}, "sink is 'analytics.orders': use PostgresTable"),
    ({"transform": lambda df: df}, r"transform does not take two arguments: write it as a function of \(df, batch\)"),
    ({"transform": 3}, "transform is 3"),
    ({"callback": lambda: None}, "callback does not take two arguments"),
    ({"policy": "maybe"}, "policy is 'maybe': use one of strict, partial, abort"),
    ({"bad_files": "ignore"}, "bad_files is 'ignore'"),
    ({"batch_files": 0}, "batch_files is 0: use a whole number"),
    ({"tolerance": 5}, "tolerance is 5: use a share between 0 and 1"),
    ({"landing": "s3://key:word@bucket/orders"}, "credentials in it"),
    ({"max_bad_lines": -1}, "max_bad_lines is -1"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[next(iter(change)) for change, _ in WRONG])
def test_a_wrong_argument_is_caught_when_definitions_load_in_one_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        FilePipeline(**{**GOOD, **change})
    assert "\n" not in str(caught.value)


def test_two_pipelines_of_one_name_are_refused() -> None:
    from pg_pipeline.pipelines.build import definitions

    make: Callable[[], FilePipeline] = lambda: FilePipeline(**GOOD)  # noqa: E731
    with pytest.raises(ConfigurationError, match="different names"):
        definitions(make(), make())
