"""A user's project that runs on a cluster: the same pipelines as anywhere, and a `pyspark` of its own."""

import json
import os
from pathlib import Path
from typing import Any

from cluster_steps import Held, Straggling

from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.pipelines.build import definitions
from pg_pipeline.resources import SparkResource
from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline.sinks.postgres import PostgresTable

HERE = Path(os.environ["TEST_CLUSTER"])
TASK: Any = Straggling(str(HERE / "stragglers")) if "TEST_STRAGGLE" in os.environ else Held(str(HERE / "hold"))
SINKS: dict[str, Any] = {
    "postgres": PostgresTable("analytics.cluster", inline_bytes=0),
    "parquet": ParquetDataset(str(HERE / "lake")),
}


def transform(df: Any, _batch: Any) -> Any:
    return df.where("amount > 0").mapInArrow(TASK, df.schema)


pipelines = [
    FilePipeline(
        name=name,
        format="json",
        schema="order_id long, amount decimal(12,2), note string",
        transform=transform,
        sink=sink,
        batch_files=4,
    )
    for name, sink in SINKS.items()
]
defs = definitions(
    *pipelines,
    name="cluster",
    resources={"pyspark": SparkResource(spark_config=json.loads(os.environ["TEST_SPARK_CONFIG"]))},
)
