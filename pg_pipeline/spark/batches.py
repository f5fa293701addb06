"""Several batches at once in one session, so that one batch's commit overlaps the next one's read."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil

from pg_pipeline.coordination.types import AttemptRef, BatchFile
from pg_pipeline.sinks.base import Sink
from pg_pipeline.spark.process import Processed, cancel, process_batch
from pg_pipeline.spark.progress import OnProgress
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.session import POOL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_MEMORY = 1 << 30


def batches_at_once(spark: SparkSession) -> int:
    """One more than half of the task slots, and no more than memory has room for; at least one, at most eight."""
    slots = spark.sparkContext.defaultParallelism
    room = psutil.virtual_memory().available // BATCH_MEMORY
    return int(max(1, min(slots // 2 + 1, room, 8)))


class BatchRunner:
    """Threads for batches, each with a FAIR pool of its own, so that a large batch does not starve a small one."""

    def __init__(self, spark: SparkSession, slots: int | None = None) -> None:
        self.spark = spark
        self.slots = slots or batches_at_once(spark)
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="batch")
        # Pools are never removed from Spark, so there are as many as threads, not as batches.
        self._pools: queue.SimpleQueue[str] = queue.SimpleQueue()
        for number in range(self.slots):
            self._pools.put(f"{POOL}-{number}")

    def submit(
        self,
        recipe: Recipe,
        files: Sequence[BatchFile],
        attempt: AttemptRef,
        sink: Sink,
        dsn: str,
        on_progress: OnProgress | None = None,
    ) -> Future[Processed]:
        return self._threads.submit(self._process, recipe, files, attempt, sink, dsn, on_progress)

    def cancel(self, attempt: AttemptRef) -> None:
        cancel(self.spark, attempt.token)

    def close(self) -> None:
        """Waits for what runs; what waits is not started."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _process(
        self,
        recipe: Recipe,
        files: Sequence[BatchFile],
        attempt: AttemptRef,
        sink: Sink,
        dsn: str,
        on_progress: OnProgress | None,
    ) -> Processed:
        with self._pool() as pool:
            return process_batch(self.spark, recipe, files, attempt, sink, dsn, on_progress, pool=pool)

    @contextlib.contextmanager
    def _pool(self) -> Iterator[str]:
        pool = self._pools.get()
        try:
            yield pool
        finally:
            self._pools.put(pool)
