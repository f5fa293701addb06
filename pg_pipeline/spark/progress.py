"""How far an attempt is, told to whoever asks: Dagster's log, a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.spark.reports import Reports

if TYPE_CHECKING:
    from pyspark import SparkContext

INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """Files, bytes and rows count when the task that read them is done. Spark's own reader tells bytes and rows as it
    reads them, and of files only what share of the bytes that is."""

    files_done: int
    files: int
    bytes_done: int
    bytes: int
    rows: int
    tasks_done: int
    tasks: int
    batches: int = 1

    @staticmethod
    def total(some: Sequence[Progress]) -> Progress | None:
        """That of several batches together."""
        if not some:
            return None
        return Progress(*(sum(values) for values in zip(*map(astuple, some), strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.files_done} of {self.files} files, {_size(self.bytes_done)} of {_size(self.bytes)}, "
            f"{self.rows:,} rows, {self.tasks_done} of {self.tasks} tasks"
        )


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


OnProgress = Callable[[Progress], None]


@contextmanager
def watched(
    context: SparkContext,
    group: str,
    files: Sequence[BatchFile],
    reports: Reports | None,
    on_progress: OnProgress | None,
) -> Iterator[None]:
    """Calls `on_progress` from a thread of its own whenever something moved, and once more at the end. Without
    `reports`, what was read is asked of Spark."""
    if on_progress is None:
        yield
        return
    stop = threading.Event()
    tell: OnProgress = on_progress
    told: list[Progress] = []

    def look() -> None:
        now = _progress(context, group, files, reports)
        if not told or told[-1] != now:
            told.append(now)
            del told[:-1]
            tell(now)

    def run() -> None:
        while not stop.wait(INTERVAL):
            look()

    thread = threading.Thread(target=run, name=f"progress-{group}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    look()


def finished(context: SparkContext, group: str, files: Sequence[BatchFile], rows: int) -> Progress:
    """Everything is read, and its rows are known."""
    now = _progress(context, group, (), None)
    size = sum(file.size for file in files)
    return Progress(len(files), len(files), size, size, rows, now.tasks_done, now.tasks)


def _progress(context: SparkContext, group: str, files: Sequence[BatchFile], reports: Reports | None) -> Progress:
    tracker = context.statusTracker()
    tasks = done = bytes_read = rows_read = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                tasks += stage.numTasks
                done += stage.numCompletedTasks
                if reports is None:
                    taken, rows = _input(context, stage_id)
                    bytes_read, rows_read = bytes_read + taken, rows_read + rows
    size = sum(file.size for file in files)
    if reports is None:
        # A plan that reads twice, or a file system that reads ahead, shows more than there is.
        bytes_read = min(bytes_read, size)
        share = bytes_read / size if size else 1.0
        return Progress(int(len(files) * share), len(files), bytes_read, size, rows_read, done, tasks)
    seen = {report.ordinal: report for report in reports.value}
    return Progress(
        files_done=len(seen),
        files=len(files),
        bytes_done=sum(report.size for report in seen.values()),
        bytes=size,
        rows=sum(report.rows_in for report in seen.values()),
        tasks_done=done,
        tasks=tasks,
    )


def _input(context: SparkContext, stage: int) -> tuple[int, int]:
    """Bytes and rows that a stage has read so far, as Spark's own pages show them."""
    try:
        data = context._jsc.sc().statusStore().lastStageAttempt(stage)
        return int(data.inputBytes()), int(data.inputRecords())
    except Py4JError:  # it ran so long ago, or so recently, that Spark does not know it
        return 0, 0
