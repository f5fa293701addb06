"""One lease at a time: the Spark work, its finish, and what became of it. No Dagster in here."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pg_pipeline.assets.callback import run_callback
from pg_pipeline.coordination.lease import Finish, Lease
from pg_pipeline.coordination.types import JSON, BatchFile, BatchResult
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import ConfigurationError, LeaseLost
from pg_pipeline.spark.arrow_reader import needs_spark
from pg_pipeline.spark.batches import batches_at_once, pool_of
from pg_pipeline.spark.errors import RecipeError, SparkDied
from pg_pipeline.spark.executors import why_ended
from pg_pipeline.spark.hadoop import check_reachable
from pg_pipeline.spark.infer import infer_schema
from pg_pipeline.spark.process import Processed, cancel, process_batch
from pg_pipeline.spark.progress import Progress
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.storage.urls import is_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pg_pipeline.pipelines.pipeline import FilePipeline

_log = logging.getLogger("pg_pipeline.work")
LINGER = 3.0
TICK = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a lease. `dead_letter` is set when it will not be tried again."""

    lease: Lease
    status: Literal["committed", "failed", "lost", "released"]
    error: str | None = None
    dead_letter: int | None = None
    retry_at: str | None = None
    progress: Progress | None = None


class Bench:
    """A worker, its Spark session, and the pipelines it knows: does what a lease asks for."""

    def __init__(
        self,
        worker: Worker,
        pipelines: Mapping[str, FilePipeline],
        spark: Callable[[], SparkSession],
        dsn: str,
        waits: Callable[[], bool] = lambda: True,
    ) -> None:
        """`waits` says whether there is work, so that a worker with none need not start Spark."""
        self.worker = worker
        self._waits = waits
        self._pipelines = pipelines
        self._start_spark = spark
        self._spark: SparkSession | None = None
        self._starting = threading.Lock()
        self._dsn = dsn
        self._schemas: dict[str, str] = {}
        self._under_way: dict[Lease, Progress] = {}
        self.stopping = threading.Event()

    def spark(self) -> SparkSession:
        """The session, started on first use: a worker is registered before."""
        with self._starting:
            if self._spark is None:
                made = self._start_spark()
                for pipeline in self._pipelines.values():
                    check_pipeline(made, pipeline)
                self._spark = made
            return self._spark

    def warm_up(self) -> None:
        """Start Spark before anything is claimed: nobody waits for a batch meanwhile, and a session that can't start
        costs no batch an attempt."""
        if self._waits():
            self.spark()

    def check(self) -> None:
        """Nothing more is claimed once the session has ended."""
        if self._spark is not None and (why := why_ended(self._spark)):
            self.worker.abandon()
            raise SparkDied(
                f"Spark ended under this worker ({why}): it takes nothing more, and what it held is taken over. If it "
                "was out of memory, raise spark.driver.memory or make batches smaller."
            )

    def slots(self) -> int:
        """How many batches at once suit this machine."""
        return batches_at_once(self._spark)

    def under_way(self) -> Progress | None:
        """How far the batches are that are being worked on, taken together."""
        return Progress.total(list(self._under_way.values()))

    def lost(self, lease: Lease, why: str) -> None:
        """Another has it, or it ended: stop its Spark jobs."""
        _log.warning("%s is lost (%s): its Spark jobs are cancelled", lease, why)
        if self._spark is not None:
            cancel(self._spark, lease.token)

    def do(self, lease: Lease, slot: int = 0) -> Outcome:
        """The work of one lease, to its finish. What goes wrong with it is handed back, not raised."""
        pipeline = self._pipelines[lease.pipeline]
        try:
            self.spark()
        except BaseException:
            with suppress(LeaseLost):
                self.worker.release(lease, "Spark did not start")  # no fault of the batch
            raise
        finishing = False
        try:
            if lease.kind == "callback":
                finish = Finish(lease, run_callback(self.spark(), pipeline, lease, self._dsn))
            else:
                finish = self._process(pipeline, lease, pool_of(slot))
            finishing = True
            self.worker.finish(finish.lease, finish.result, finish.publish)
        except LeaseLost as error:
            return Outcome(lease, "lost", str(error))
        except Exception as error:  # noqa: BLE001 - a batch's own trouble must not end the worker of the others
            self.check()
            return self._failed(lease, error, finishing)
        finally:
            progress = self._under_way.pop(lease, None)
        return Outcome(lease, "committed", progress=progress)

    def _process(self, pipeline: FilePipeline, lease: Lease, pool: str) -> Finish:
        """Staged; it becomes visible with the finish."""
        attempt, sink = lease.ref, pipeline.sink
        files = self.worker.files(lease)
        self.worker.note_output(lease, sink.name, sink.location(attempt))
        recipe = self._recipe(pipeline, files)

        def tell(progress: Progress) -> None:
            self._under_way[lease] = progress

        processed = process_batch(self.spark(), recipe, files, attempt, sink, self._dsn, tell, pool=pool)

        def publish(conn: Any) -> None:
            sink.publish(conn, processed.staged, attempt)

        return Finish(lease, _described(processed), publish)

    def _recipe(self, pipeline: FilePipeline, files: Sequence[BatchFile]) -> Recipe:
        """With its schema: the one in code, or the pinned one, or what this batch's files show, which is then pinned.
        Of two batches that look at once, the first to pin decides for both."""
        recipe = pipeline.recipe()
        if recipe.schema is not None:
            return recipe
        if pipeline.name not in self._schemas:
            pinned = self.worker.pin_schema(pipeline.name, None)
            if pinned is None:
                pinned = self.worker.pin_schema(pipeline.name, infer_schema(self.spark(), recipe, files).toDDL())
                assert pinned is not None
                _log.info("the schema of %s is pinned: %s", pipeline.name, pinned)
            self._schemas[pipeline.name] = pinned
        return recipe.pinned(self._schemas[pipeline.name])

    def _failed(self, lease: Lease, error: Exception, finishing: bool) -> Outcome:
        if lease not in self.worker.held:  # lost meanwhile: its Spark jobs were cancelled under it
            return Outcome(lease, "lost", str(error))
        retryable = getattr(error, "retryable", True)
        try:
            if self.stopping.is_set():
                self.worker.release(lease, "its run was stopped")
                return Outcome(lease, "released")
            failed = self.worker.fail(lease, error, retryable=retryable, finishing=finishing)
        except LeaseLost as lost:
            return Outcome(lease, "lost", str(lost))
        return Outcome(lease, "failed", _first_line(error), failed.dead_letter, failed.retry_at)


def check_pipeline(spark: SparkSession, pipeline: FilePipeline) -> None:
    """ConfigurationError when its files lie where its reader cannot go: before a batch is claimed, not for each."""
    recipe = pipeline.recipe()
    places = [place for place in pipeline.allowed_roots if is_url(place)]
    if places and (recipe.schema is not None or recipe.reader == "spark") and needs_spark(recipe):
        try:
            check_reachable(spark, places)
        except RecipeError as error:
            raise ConfigurationError(f"Pipeline {pipeline.name}: {error}") from None


def _described(processed: Processed) -> BatchResult:
    """The result with its columns: a later report must not need the rows."""
    columns: list[JSON] = [[field.name, field.dataType.simpleString()] for field in processed.schema.fields]
    return replace(processed.result, metadata={**processed.result.metadata, "columns": columns})


def drain(
    bench: Bench,
    *,
    slots: int | None = None,
    seconds: float | None = None,
    claim: Callable[[Worker], Sequence[Lease]] | None = None,
    linger: float = LINGER,
) -> Generator[Outcome | None, None, None]:
    """Do what is ready, `slots` at a time in one Spark session, until nothing is left or the time is up. How many
    suit the machine is found out where nobody says.

    Yields what became of each lease, and None now and then while nothing comes.
    Closing the iterator (a cancelled run) cancels the Spark jobs under way; leaving the worker hands leases back.
    """
    until = time.monotonic() + seconds if seconds is not None else None
    bench.warm_up()
    slots = slots or bench.slots()
    done: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    idle_since: dict[int, float] = {}
    ask = claim or (lambda worker: worker.claim(1))

    def run(slot: int) -> None:
        try:
            while not stop.is_set() and (until is None or time.monotonic() < until):
                bench.check()
                leases = ask(bench.worker)
                if leases:
                    idle_since.pop(slot, None)
                    for lease in leases:
                        done.put(bench.do(lease, slot))
                    continue
                now = time.monotonic()
                idle_since.setdefault(slot, now)
                # A slot stays while another works: its batch may be the one that makes the callback.
                others_idle = len(idle_since) == slots
                if claim is not None or (others_idle and now - max(idle_since.values()) >= linger):
                    return
                bench.worker.wait(min(1.0, max(0.1, linger / 4)))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that drains
            stop.set()
            done.put(error)
        finally:
            idle_since.setdefault(slot, time.monotonic())
            done.put(None)

    threads = [threading.Thread(target=run, args=(n,), name=f"pg_pipeline-slot-{n}", daemon=True) for n in range(slots)]
    for thread in threads:
        thread.start()
    open_slots, trouble = slots, None
    try:
        while open_slots:
            try:
                item = done.get(timeout=TICK)
            except queue.Empty:
                yield None
                continue
            if item is None:
                open_slots -= 1
            elif isinstance(item, BaseException):
                trouble = trouble or item
            else:
                yield item
    finally:
        stop.set()
        if open_slots:
            bench.stopping.set()
        while any(thread.is_alive() for thread in threads):
            if open_slots:
                for lease in bench.worker.held:
                    bench.lost(lease, "its run was stopped")
            for thread in threads:
                thread.join(0.2)
    if trouble is not None:
        raise trouble


def _first_line(error: BaseException) -> str:
    """The line that says what happened; of a traceback that is the one after it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback"):
        lines = [line for line in lines[1:] if not line.startswith(" ")]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:1000]
