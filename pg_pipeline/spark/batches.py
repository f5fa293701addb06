"""How many batches run at once in one session, so that one batch's commit overlaps the next one's read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pg_pipeline.spark.session import POOL, cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST = 8
BATCH_MEMORY = 1 << 30
# What a batch may send through the driver, with room to handle it.
BATCH_HEAP = 384 << 20
_CGROUP = Path("/sys/fs/cgroup")


def batches_at_once(spark: SparkSession | None) -> int:
    """One more than half of the task slots, and no more than memory and the driver's heap have room for."""
    if spark is None:  # not started yet, and so not busy
        return bounded(cores("local[*]"), memory_left(), 1 << 40)
    context = spark.sparkContext
    assert context._jvm is not None
    heap = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())
    return bounded(context.defaultParallelism, memory_left(), heap)


def bounded(slots: int, memory: int, heap: int) -> int:
    return max(1, min(slots // 2 + 1, memory // BATCH_MEMORY, heap // BATCH_HEAP, MOST))


def memory_left(cgroup: Path = _CGROUP) -> int:
    """Bytes that are free, in a container those that it may still take."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or one without a limit, which reads "max"
        return free
    return max(0, min(free, limit - used))


def pool_of(slot: int) -> str:
    """A FAIR pool for each slot, so that a large batch does not starve a small one. Spark never removes a pool, so
    there are as many as slots, not as batches."""
    return f"{POOL}-{slot}"
