"""A cluster's executors: have they what our tasks need? Asked once, before a worker claims anything."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError

import pg_pipeline
from pg_pipeline.spark.errors import ClusterNotReady

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What tasks import; deploy/executors.txt says how it gets there.
NEEDED = ("pg_pipeline", "pyarrow", "pgpq", "psycopg")
# An executor may have to wait for a machine that is only now started.
PATIENCE = 600.0
HOW = "see the page on deploying for how packages reach executors (spark.archives)"
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_VERSION = re.compile(r"different version: (\S+) than that in driver: (\S+?),")


# A plain tuple: a class of ours could not be unpickled there.
Found = tuple[str, str | None, list[str]]


def check_executors(spark: SparkSession, patience: float = PATIENCE) -> None:
    """A small job on the executors. Raises ClusterNotReady, which costs no batch an attempt."""
    context = spark.sparkContext
    master = str(context.master)
    slots = max(1, min(context.defaultParallelism, 64))
    group = f"pg_pipeline executors {uuid4()}"
    context.setJobGroup(group, "what executors have", interruptOnCancel=False)
    late = threading.Timer(patience, context._jsc.sc().cancelJobGroupAndFutureJobs, (group,))
    late.start()
    try:
        found = context.parallelize(range(slots), slots).map(_looker()).collect()
    except Exception as error:  # noqa: BLE001 - whatever Spark raises
        if "cancelled" in str(error):
            raise ClusterNotReady(
                f"No executor of {master} took a task within {patience:.0f} s: see that its workers are there and "
                "have the memory and cores that this session asks for (spark.executor.memory, spark.cores.max)."
            ) from None
        raise (
            what_executors_lack(str(error))
            or ClusterNotReady(f"The executors of {master} could not run a task ({_first_line(error)}): {HOW}.")
        ) from None
    finally:
        late.cancel()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
    for host, version, lacking in found:
        if lacking:
            raise ClusterNotReady(f"Executors on {host} can't import {', '.join(lacking)}: {HOW}.")
        if version != pg_pipeline.__version__:
            raise ClusterNotReady(
                f"Executors on {host} have pg_pipeline {version} and this worker has {pg_pipeline.__version__}: "
                "give both the same."
            )


def what_executors_lack(text: str) -> ClusterNotReady | None:
    """What a job that failed says of its executors, in a sentence; None where it failed of something else."""
    if version := _VERSION.search(text):
        return ClusterNotReady(
            f"Executors run Python {version[1]} and this worker {version[2]}: name one of the same version with "
            "spark.pyspark.python."
        )
    if program := _NO_PROGRAM.search(text):
        return ClusterNotReady(f"Executors have no Python at {program[1]}: name theirs with spark.pyspark.python.")
    if module := _NO_MODULE.search(text):
        return ClusterNotReady(f"Executors can't import {module[1]}: {HOW}.")
    return None


def why_ended(spark: SparkSession) -> str | None:
    """Why a session is of no more use: its Java process is gone, or it stopped by itself. None while it lives."""
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)
    code = process.poll() if process is not None else None
    if code is not None:
        return f"its Java process ended with code {code}"
    try:
        stopped = context._jsc is None or context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return "its Java process does not answer"
    return "it was stopped" if stopped else None


def _looker() -> Callable[[int], Found]:
    """Not a function of this module, which the executors may not have: it travels as code."""
    needed = NEEDED

    def look(_: int) -> Found:
        import importlib
        import socket

        lacking, version = [], None
        for name in needed:
            try:
                module = importlib.import_module(name)
            except ImportError as error:
                lacking.append(f"{name} ({error})")
            else:
                version = module.__version__ if name == "pg_pipeline" else version
        return socket.gethostname(), version, lacking

    return look


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
