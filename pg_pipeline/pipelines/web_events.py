"""Events of a web site: CSV files that trickle in, into a Parquet dataset and a count per page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pg_pipeline.pipelines.pipeline import FilePipeline
from pg_pipeline.sinks.parquet import ParquetDataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pg_pipeline.assets.callback import Execution


def count_by_page(_spark: SparkSession, execution: Execution) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        execution.rows.groupBy("page")
        .agg(f.count("*").alias("views"), f.approx_count_distinct("visitor").alias("visitors"))
        .orderBy(f.desc("views"), "page")
        .limit(100)
    )


web_events = FilePipeline(
    name="web_events",
    landing="data/web_events",
    delivery="quiet:60s",
    format="csv",
    schema="at timestamp, visitor string, page string, milliseconds int",
    transform=lambda df, _batch: df.where("page is not null"),
    sink=ParquetDataset("data/lake/web_events"),
    callback=count_by_page,
    policy="partial",
    description="Page views, from the web servers' CSV files.",
)
