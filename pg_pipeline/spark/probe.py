"""Finds every bad file of a batch in one job, after Spark's own reader stopped at the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.spark.arrow_reader import arrow_can, deal, read_file, read_plan
from pg_pipeline.spark.files import BadFile, check_unchanged, open_raw, open_text, verdicts
from pg_pipeline.spark.pieces import ReadPlan
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.reports import FileReport, Reports, by_ordinal, new_reports
from pg_pipeline.spark.spool import Spool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def probe(spark: SparkSession, recipe: Recipe, files: Sequence[BatchFile]) -> dict[int, FileReport]:
    """The reports of the bad files."""
    reports = new_reports(spark.sparkContext)
    shares = deal(files, spark.sparkContext.defaultParallelism)
    task = ProbeTask(shares, read_plan(recipe), reports, whole=arrow_can(recipe))
    spark.range(0, len(shares), 1, len(shares)).mapInArrow(task, "id long").write.format("noop").mode(
        "overwrite"
    ).save()
    found = by_ordinal(reports.value)
    reports._value = set()
    return {ordinal: report for ordinal, report in found.items() if report.reason is not None}


class ProbeTask:
    """`whole` judges the content too; without it only what stops Spark's reader is found."""

    def __init__(self, shares: list[list[BatchFile]], plan: ReadPlan, reports: Reports, *, whole: bool) -> None:
        self.shares = shares
        self.plan = plan
        self.reports = reports
        self.whole = whole

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                for file in self.shares[share]:
                    self.reports.add({self._judge(file)})
            yield batch.slice(0, 0)

    def _judge(self, file: BatchFile) -> FileReport:
        if self.whole:
            with Spool(self.plan.schema) as spool:
                return read_file(file, self.plan, spool, seen=True)
        try:
            check_unchanged(file.path, file.version, file.size, self.plan.storage, reading=True)
            with verdicts():
                _read_bytes(file.path, self.plan)
            check_unchanged(file.path, file.version, file.size, self.plan.storage, reading=True)
        except BadFile as verdict:
            return FileReport.bad(file.ordinal, verdict, file.size)
        return FileReport(file.ordinal, size=file.size)


def _read_bytes(path: str, plan: ReadPlan) -> None:
    if plan.format == "parquet":
        with open_raw(path, plan.storage) as raw:
            for _ in pq.ParquetFile(pa.PythonFile(raw, mode="r")).iter_batches(use_threads=False):
                pass
        return
    with open_text(path, plan.max_file_bytes, plan.storage) as stream:
        while stream.read(1 << 20):
            pass
