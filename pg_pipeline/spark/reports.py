"""How each file's outcome reaches the driver: a set, merged only from tasks that Spark counts as succeeded.

Spark may run a task twice (a retry, speculation, a sort that samples first). Counters would count twice; equal
reports fall together in a set, and two different reports of one file are seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.accumulators import Accumulator, AccumulatorParam

from pg_pipeline.spark.errors import UnsteadyFiles
from pg_pipeline.spark.files import BadFile, Reason

if TYPE_CHECKING:
    from pyspark import SparkContext


class FileReport(NamedTuple):
    """One reading of one file. `doubtful` says why only Spark's reader can judge it."""

    ordinal: int
    rows_in: int = 0
    rescued: int = 0
    bad_lines: int = 0
    reason: Reason | None = None
    detail: str | None = None
    doubtful: str | None = None
    size: int = 0

    @classmethod
    def bad(cls, ordinal: int, verdict: BadFile, size: int) -> FileReport:
        return cls(ordinal, reason=verdict.reason, detail=verdict.detail, size=size)


Reports = Accumulator[set[FileReport]]


class _Union(AccumulatorParam[set[FileReport]]):
    def zero(self, value: set[FileReport]) -> set[FileReport]:  # noqa: ARG002
        return set()

    def addInPlace(self, value1: set[FileReport], value2: set[FileReport]) -> set[FileReport]:  # noqa: N802
        # Not in place: the progress thread may be looking at the old one.
        return value1 | value2


def new_reports(context: SparkContext) -> Reports:
    empty: set[FileReport] = set()
    return context.accumulator(empty, _Union())


def by_ordinal(reports: Iterable[FileReport]) -> dict[int, FileReport]:
    """One report per file. A file that reads differently the second time is not to be trusted in this attempt."""
    found: dict[int, FileReport] = {}
    for report in reports:
        other = found.setdefault(report.ordinal, report)
        if other != report:
            raise UnsteadyFiles(
                f"File {report.ordinal} of the batch was read twice with different results "
                f"({_said(other)}; {_said(report)}): the batch will be tried again."
            )
    return found


def unreported(ordinals: Sequence[int], found: dict[int, Any]) -> list[int]:
    return [ordinal for ordinal in ordinals if ordinal not in found]


def _said(report: FileReport) -> str:
    return report.reason or f"{report.rows_in} rows"
