"""A pipeline whose Spark work waits as long as a file is there: what `up` loads in the tests of Dagster's faults."""

import os
from pathlib import Path
from typing import Any

from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.helpers import wait_until

VARIABLE = "TEST_HOLD"
HOLD = Path(os.environ.get(VARIABLE, os.devnull))


def transform(df: Any, _batch: Any) -> Any:
    wait_until(lambda: not HOLD.is_file(), timeout=1200, what="the file to go")
    return df


defs = FilePipeline(
    name="held",
    landing="landing",
    format="json",
    schema="order_id long, amount decimal(12,2)",
    sink=PostgresTable("analytics.held"),
    transform=transform,
    batch_files=2,
).definitions()
