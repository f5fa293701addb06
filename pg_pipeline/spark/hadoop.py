"""What Spark's own reader can reach: Hadoop's file systems, of which some come as jars of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from pg_pipeline.spark.errors import RecipeError
from pg_pipeline.storage.urls import url_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMES = {"s3": "s3a"}  # where Hadoop has another name for it
_JARS = {"s3": "hadoop-aws", "gs": "gcs-connector", "abfs": "hadoop-azure"}


def hadoop_name(path: str) -> str:
    url = url_of(path)
    return path if url is None else f"{_SCHEMES.get(url.protocol, url.protocol)}{str(url)[len(url.protocol) :]}"


def reachable(spark: SparkSession, protocol: str) -> bool:
    """Whether this session has Hadoop's file system for it."""
    java: Any = spark.sparkContext._jvm
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        java.org.apache.hadoop.fs.FileSystem.getFileSystemClass(_SCHEMES.get(protocol, protocol), settings)
    except Py4JJavaError:
        return False
    return True


def check_reachable(spark: SparkSession, paths: Iterable[str]) -> None:
    """RecipeError when Spark's own reader cannot go where these lead."""
    for protocol in sorted({url.protocol for path in paths if (url := url_of(path)) is not None}):
        if not reachable(spark, protocol):
            raise RecipeError(
                f"Spark's own reader cannot read {protocol}:// in this session: give Spark {missing(protocol)}, "
                "or let the pipeline's reader be arrow, which needs no jar."
            )


def jar(protocol: str) -> Path | None:
    """The jar in Spark's own folder that brings Hadoop's file system for a protocol."""
    return next(iter(sorted(_spark_jars().glob(f"{_JARS[protocol]}-*.jar"))), None)


def missing(protocol: str) -> str:
    if protocol == "s3":
        return f"org.apache.hadoop:hadoop-aws:{_version()} (docs/storage.md says how)"
    return f"the jar {_JARS.get(protocol, 'that has it')} (spark.jars)"


def _version() -> str:
    found = next(iter(_spark_jars().glob("hadoop-client-api-*.jar")), None)
    match = re.search(r"-(\d[\d.]*\d)\.jar$", found.name) if found else None
    return match[1] if match else "of your Spark's Hadoop"


def _spark_jars() -> Path:
    import pyspark

    home = os.environ.get("SPARK_HOME")
    return (Path(home) if home else Path(pyspark.__file__).parent) / "jars"
