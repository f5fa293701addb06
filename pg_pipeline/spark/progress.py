"""How far an attempt is, told to whoever asks: Dagster's log, a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.spark.reports import Reports

if TYPE_CHECKING:
    from pyspark import SparkContext

INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """Files, bytes and rows count when the task that read them is done."""

    files_done: int
    files: int
    bytes_done: int
    bytes: int
    rows: int
    tasks_done: int
    tasks: int


OnProgress = Callable[[Progress], None]


@contextmanager
def watched(
    context: SparkContext, group: str, files: Sequence[BatchFile], reports: Reports, on_progress: OnProgress | None
) -> Iterator[None]:
    """Calls `on_progress` from a thread of its own whenever something moved, and once more at the end."""
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


def _progress(context: SparkContext, group: str, files: Sequence[BatchFile], reports: Reports) -> Progress:
    tracker = context.statusTracker()
    tasks = done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                tasks += stage.numTasks
                done += stage.numCompletedTasks
    seen = {report.ordinal: report for report in reports.value}
    return Progress(
        files_done=len(seen),
        files=len(files),
        bytes_done=sum(report.size for report in seen.values()),
        bytes=sum(file.size for file in files),
        rows=sum(report.rows_in for report in seen.values()),
        tasks_done=done,
        tasks=tasks,
    )
