"""Orders of a web shop: JSON files, a folder per delivery, into a Postgres table and a summary per country."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.postgres import PostgresTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pg_pipeline.assets.callback import Execution


def summarise_by_country(_spark: SparkSession, execution: Execution) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        execution.rows.groupBy("country")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"), f.max("at").alias("last_at"))
        .orderBy("country")
    )


orders = FilePipeline(
    name="orders",
    landing="data/orders",
    roots=[get_settings().state_dir / "demo"],  # where `pg-pipeline demo` lands its files
    delivery="folder",
    format="json",
    schema="order_id long, customer string, amount decimal(12,2), country string, at timestamp",
    transform=lambda df, _batch: df.where("amount > 0"),
    sink=PostgresTable("analytics.orders"),
    callback=summarise_by_country,
    batch_files=10,
    description="Orders with a positive amount, from the shop's JSON files.",
)
