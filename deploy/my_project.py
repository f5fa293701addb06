"""What this deployment runs: your pipelines, with Spark on the cluster that compose.yaml starts."""

import os

from pg_pipeline.pipelines.build import definitions
from pg_pipeline.pipelines.orders import orders
from pg_pipeline.pipelines.web_events import web_events
from pg_pipeline.resources import SparkResource

WORKERS = 2

cluster = SparkResource(
    spark_config={
        "spark.master": os.environ.get("SPARK_MASTER", "spark://spark-master:7077"),
        # Executors connect to the driver, which is the worker's run.
        "spark.driver.host": os.environ.get("SPARK_DRIVER_HOST", "code"),
        "spark.executor.memory": "2g",
        # A standalone cluster gives the first session all it has, and the second none.
        "spark.cores.max": "2",
    }
)
defs = definitions(orders, web_events, max_workers=WORKERS, resources={"pyspark": cluster})
