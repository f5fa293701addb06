"""One Spark session per process, tuned for many small jobs. Every default can be overridden."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J = Path(__file__).with_name("log4j2.properties")
POOL = "pg_pipeline"


def spark_config(overrides: Mapping[str, object] | None = None, *, master: str = "local[*]") -> dict[str, str]:
    """The session's settings, flat, as dagster-pyspark's `spark_config` takes them; `overrides` win."""
    given = {key: _text(value) for key, value in (overrides or {}).items()}
    master = given.get("spark.master", master)
    local = master.startswith("local")
    config = {
        "spark.app.name": "pg_pipeline",
        "spark.master": master,
        # A shuffle of a small batch costs its number of partitions, and AQE only merges what it has.
        "spark.sql.shuffle.partitions": str(cores(master)),
        "spark.sql.adaptive.enabled": "true",
        # Above this many paths Spark starts a job just to list them.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
        "spark.sql.files.openCostInBytes": "262144",
        # The default looks for a checksum file beside each, by a name that a colon makes a URI.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # INT96, the older default, is not read alike by Arrow-side readers.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Finished jobs and queries are remembered per entry: a worker runs for days.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "50",
        # Executors of a cluster may have theirs elsewhere; tasks of a local session run what runs here.
        "spark.pyspark.python": sys.executable if local else os.environ.get("PYSPARK_PYTHON", sys.executable),
        "spark.pyspark.driver.python": sys.executable,
        # A driver that ran out of memory ends: half alive, it would fail batch after batch.
        "spark.driver.extraJavaOptions": shlex.join(
            [f"-Dlog4j2.configurationFile={LOG4J.as_uri()}", "-XX:+ExitOnOutOfMemoryError"]
        ),
    }
    if local:
        config["spark.driver.host"] = config["spark.driver.bindAddress"] = "127.0.0.1"
    config.update(given)
    return config


def session(overrides: Mapping[str, object] | None = None, *, master: str = "local[*]") -> SparkSession:
    """This process's session; a second call returns the same one. On a cluster, its executors are looked at first."""
    from pyspark.sql import SparkSession

    from pg_pipeline.spark.executors import check_executors

    quiet()
    config = spark_config(overrides, master=master)
    os.environ["PYSPARK_PYTHON"] = config["spark.pyspark.python"]  # PySpark itself does not read the setting
    builder = SparkSession.builder
    for key, value in config.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    if not config["spark.master"].startswith("local"):
        check_executors(made)
    return made


def quiet() -> None:
    """PySpark logs every SQL error with its whole Java stack, besides raising it."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)


def cores(master: str) -> int:
    """How many tasks a local master runs at once; for a cluster, what one small batch can use."""
    if master == "local":
        return 1
    if master.startswith("local["):
        asked = master[len("local[") :].rstrip("]").split(",")[0]
        return int(asked) if asked.isdigit() else _own_cores()
    return 8


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
