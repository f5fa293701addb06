"""One batch: read its files, transform them, stage the rows. What a worker calls between claim and finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg

from pg_pipeline.coordination.types import JSON, AttemptRef, BatchFile, BatchResult, FileOutcome
from pg_pipeline.sinks.base import COUNTED_FILE, FILE, Sink, Staged, visible
from pg_pipeline.spark import failures
from pg_pipeline.spark.arrow_reader import needs_spark, read_with_arrow
from pg_pipeline.spark.errors import BadFiles, SchemaDrift, SparkError, TransformFailed, UnsteadyFiles
from pg_pipeline.spark.hadoop import check_reachable, reachable
from pg_pipeline.spark.probe import probe
from pg_pipeline.spark.progress import OnProgress, finished, watched
from pg_pipeline.spark.recipe import Batch, Recipe
from pg_pipeline.spark.reports import FileReport, Reports, by_ordinal, new_reports, unreported
from pg_pipeline.spark.session import POOL, quiet
from pg_pipeline.spark.spark_reader import Look, SparkRead, look, still_there, stops_early, verdict
from pg_pipeline.storage.urls import url_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DRIFT = ("wrong_schema", "wrong_header")


@dataclass(frozen=True, slots=True)
class Processed:
    """A staged batch: finish with `result`, and `sink.publish(conn, staged, attempt)` in that transaction."""

    result: BatchResult
    staged: Staged
    schema: StructType


def process_batch(
    spark: SparkSession,
    recipe: Recipe,
    files: Sequence[BatchFile],
    attempt: AttemptRef,
    sink: Sink,
    dsn: str,
    on_progress: OnProgress | None = None,
    *,
    pool: str = POOL,
) -> Processed:
    """Reads and stages; nothing is visible yet. Raises when the batch fails; bad files are no failure."""
    quiet()
    work = _Work(spark, recipe, tuple(files), attempt, sink, dsn, on_progress)
    with _job_group(spark, attempt, pool):
        try:
            return work.run()
        except BaseException:
            _discard(sink, attempt, dsn)
            raise


def cancel(spark: SparkSession, token: UUID) -> None:
    """Stop the Spark jobs of an attempt, also those that it has not started yet; from any thread."""
    spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(str(token))


@dataclass(frozen=True, slots=True)
class _Work:
    spark: SparkSession
    recipe: Recipe
    files: Sequence[BatchFile]
    attempt: AttemptRef
    sink: Sink
    dsn: str
    on_progress: OnProgress | None

    def run(self) -> Processed:
        if not needs_spark(self.recipe):
            return self._arrow()
        check_reachable(self.spark, (file.path for file in self.files))
        return self._spark({})

    def _arrow(self) -> Processed:
        strict = self.recipe.reader == "arrow" or not self._spark_reaches()
        reports = new_reports(self.spark.sparkContext)
        rows = read_with_arrow(self.spark, self.recipe, self.files, reports, strict=strict)
        out = self._transform(rows, self.files)
        staged = self._stage(out, self.files, reports)
        found = by_ordinal(reports.value)
        missing = unreported([file.ordinal for file in self.files], found)
        if missing:
            # A limit in the transform stops the reading early: those files still need their verdict.
            rest = [file for file in self.files if file.ordinal in missing]
            _run(read_with_arrow(self.spark, self.recipe, rest, reports, strict=strict))
            found = by_ordinal(reports.value)
        reports._value = set()  # PySpark keeps every accumulator for ever
        if any(report.doubtful for report in found.values()):
            _discard(self.sink, self.attempt, self.dsn)
            return self._spark({o: report for o, report in found.items() if report.reason is not None})
        return self._processed(found, out, staged, "arrow")

    def _spark_reaches(self) -> bool:
        """Whether Spark's own reader could judge what Arrow can't."""
        stores = {url.protocol for file in self.files if (url := url_of(file.path)) is not None}
        return all(reachable(self.spark, protocol) for protocol in stores)

    def _spark(self, bad: dict[int, FileReport]) -> Processed:
        """Runs without the files known to be bad, until a run shows no more of them: two, rarely three."""
        seen = look(self.recipe, [file for file in self.files if file.ordinal not in bad])
        bad |= seen.bad
        probed = False
        for _ in range(3):
            good = [file for file in self.files if file.ordinal not in bad]
            try:
                found, out, staged = self._spark_once(good, seen)
            except Exception as error:
                if probed or not failures.is_about_files(error):
                    raise
                probed = True
                more = probe(self.spark, self.recipe, good)
                if not more:
                    raise
            else:
                more = {o: report for o, report in found.items() if report.reason is not None}
                if not more:
                    return self._processed(found | bad, out, staged, "spark")
            _discard(self.sink, self.attempt, self.dsn)
            bad |= more
        raise UnsteadyFiles(f"Files of {self._where()} kept turning bad while they were read: it will be tried again.")

    def _spark_once(self, good: Sequence[BatchFile], seen: Look) -> tuple[dict[int, FileReport], DataFrame, Staged]:
        reading = SparkRead(self.spark, self.recipe, good, seen)
        before = self._jobs()
        out = self._transform(reading.rows, good)
        # Counts belong to the first job that sees the rows, which must be the one that stages them.
        ours = self._jobs() == before and not stops_early(out)
        staged = self._stage(out, good, None)
        tally = (reading.tally() if ours else None) or reading.count()
        missing = [file for file in good if file.path not in tally.rows]
        if missing:
            # No rows, or rows that a limit in the transform left unread.
            tally = tally.joined(SparkRead(self.spark, self.recipe, missing, seen).count())
        found = {file.ordinal: verdict(file, tally, self.recipe) for file in good}
        return found | still_there(good, self.recipe), out, staged

    def _jobs(self) -> set[int]:
        return set(self.spark.sparkContext.statusTracker().getJobIdsForGroup(str(self.attempt.token)))

    def _stage(self, out: DataFrame, files: Sequence[BatchFile], reports: Reports | None) -> Staged:
        with psycopg.connect(self.dsn) as conn:
            self.sink.prepare(conn, visible(out.schema))
        try:
            with watched(self.spark.sparkContext, str(self.attempt.token), files, reports, self.on_progress):
                return self.sink.stage(out, self.attempt, self.dsn)
        except SparkError:
            raise
        except Exception as error:
            fault = failures.from_running(error, self._where())
            if fault is error:
                raise
            raise fault from None

    def _transform(self, rows: DataFrame, files: Sequence[BatchFile]) -> DataFrame:
        from pyspark.sql import DataFrame

        out = rows
        if self.recipe.transform is not None:
            try:
                out = self.recipe.transform(rows, Batch(self.attempt, files))
            except Exception as error:  # noqa: BLE001 - whatever a user's code raises
                raise failures.from_calling(error, self._where()) from None
            if not isinstance(out, DataFrame):
                raise TransformFailed(
                    f"The transform of {self._where()} returned {type(out).__name__}: it must return a DataFrame."
                )
        if FILE in out.columns and not self.recipe.provenance:
            out = out.withColumnRenamed(FILE, COUNTED_FILE)
        return out

    def _processed(self, found: dict[int, FileReport], out: DataFrame, staged: Staged, reader: str) -> Processed:
        self._check_policy(found)
        by_file = staged.rows_by_file or {}
        outcomes = [_outcome(found[file.ordinal], by_file.get(file.path, 0)) for file in self.files]
        metadata: dict[str, JSON] = {
            "reader": reader,
            "bad_lines": sum(report.bad_lines for report in found.values()),
            "rows_out_by_file": staged.rows_by_file is not None,
        }
        result = BatchResult(
            files=outcomes,
            rows_in=sum(outcome.rows_in for outcome in outcomes),
            rows_out=staged.rows,
            rows_rescued=sum(outcome.rows_rescued for outcome in outcomes),
            metadata=metadata,
        )
        if self.on_progress is not None:
            self.on_progress(finished(self.spark.sparkContext, str(self.attempt.token), self.files, result.rows_in))
        return Processed(result, staged, visible(out.schema))

    def _check_policy(self, found: dict[int, FileReport]) -> None:
        bad = [(f.path, found[f.ordinal]) for f in self.files if found[f.ordinal].reason is not None]
        drifted = [(path, report) for path, report in bad if report.reason in DRIFT]
        if drifted and self.recipe.drift == "fail":
            path, report = drifted[0]
            raise SchemaDrift(
                f"{len(drifted)} files of {self._where()} do not have the pipeline's schema, first {path} "
                f"({report.detail}): pin a new schema, or set drift to quarantine or rescue."
            )
        if bad and self.recipe.bad_files == "fail":
            path, report = bad[0]
            raise BadFiles(
                f"{len(bad)} files of {self._where()} are bad, first {path} ({report.reason}: {report.detail}): "
                "mend them, or set bad_files to quarantine.",
                [(path, str(report.reason)) for path, report in bad],
            )

    def _where(self) -> str:
        return f"{self.attempt.pipeline} {self.attempt.execution} batch {self.attempt.batch}"


def _outcome(report: FileReport, rows_out: int) -> FileOutcome:
    if report.reason is not None:
        return FileOutcome(report.ordinal, "quarantined", 0, 0, 0, report.reason, report.detail)
    detail = f"{report.bad_lines} bad lines left out" if report.bad_lines else None
    return FileOutcome(report.ordinal, "committed", report.rows_in, rows_out, report.rescued, None, detail)


def _run(df: DataFrame) -> None:
    """Evaluate every row and keep none."""
    df.write.format("noop").mode("overwrite").save()


@contextmanager
def _job_group(spark: SparkSession, attempt: AttemptRef, pool: str) -> Iterator[None]:
    context = spark.sparkContext
    context.setJobGroup(
        str(attempt.token), f"{attempt.pipeline} {attempt.execution} batch {attempt.batch}", interruptOnCancel=True
    )
    context.setLocalProperty("spark.scheduler.pool", pool)
    try:
        yield
    finally:
        for name in (
            "spark.jobGroup.id",
            "spark.job.description",
            "spark.job.interruptOnCancel",
            "spark.scheduler.pool",
        ):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def _discard(sink: Sink, attempt: AttemptRef, dsn: str) -> None:
    """At once, if it can be: what stays is the reaper's."""
    try:
        with psycopg.connect(dsn, connect_timeout=5) as conn:
            sink.discard(conn, attempt)
    except psycopg.Error:
        pass
