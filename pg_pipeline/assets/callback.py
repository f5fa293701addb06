"""The callback: what a pipeline runs once, when all of an execution is in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pg_pipeline.coordination import partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import CallbackResult, Lease
from pg_pipeline.coordination.types import JSON
from pg_pipeline.errors import PgPipelineError
from pg_pipeline.sinks.reading import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pg_pipeline.pipelines.pipeline import FilePipeline

SUMMARY_ROWS = 1000


class CallbackFailed(PgPipelineError):
    """The pipeline's callback returned what can't be kept."""

    retryable = False


@dataclass(frozen=True)
class Execution:
    """What a callback is told: the counts of the execution, and its committed rows."""

    key: str
    pipeline: str
    generation: int
    files: int
    rows_in: int
    rows_out: int
    quarantined: int
    failed_batches: tuple[int, ...]
    _spark: Any = None
    _sink: Any = None
    _dsn: str = ""

    @property
    def rows(self) -> DataFrame:
        """The rows of this execution that are visible in the sink."""
        return read(self._spark, self._sink, self._dsn, execution=self.key)


def run_callback(spark: SparkSession, pipeline: FilePipeline, lease: Lease, dsn: str) -> CallbackResult:
    with Database(dsn, idle=1) as db:
        assert lease.execution is not None
        report = partitions.execution(db, lease.execution)
        failed = [b.number for b in partitions.batches(db, lease.execution) if b.state in ("dead", "discarded")]
    execution = Execution(
        key=report.execution,
        pipeline=report.pipeline,
        generation=report.generation,
        files=report.files,
        rows_in=report.rows_in,
        rows_out=report.rows_out,
        quarantined=report.quarantined,
        failed_batches=tuple(failed),
        _spark=spark,
        _sink=pipeline.sink,
        _dsn=dsn,
    )
    if pipeline.callback is None:
        return CallbackResult(summary=totals(execution))
    answer = pipeline.callback(spark, execution)
    if isinstance(answer, CallbackResult):
        return answer
    if isinstance(answer, Mapping):
        return CallbackResult(summary=_json(answer))
    if hasattr(answer, "limit") and hasattr(answer, "collect"):
        return CallbackResult(summary=_rows(answer))
    raise CallbackFailed(
        f"The callback of {pipeline.name} returned {type(answer).__name__}: "
        "return a DataFrame, a dict or a CallbackResult."
    )


def totals(execution: Execution) -> dict[str, JSON]:
    return {
        "files": execution.files,
        "rows_in": execution.rows_in,
        "rows_out": execution.rows_out,
        "quarantined": execution.quarantined,
    }


def _rows(frame: DataFrame) -> JSON:
    rows = [row.asDict(recursive=True) for row in frame.limit(SUMMARY_ROWS + 1).collect()]
    if len(rows) > SUMMARY_ROWS:
        raise CallbackFailed(
            f"The callback returned more than {SUMMARY_ROWS} rows: "
            "aggregate them, or write them to a table and return a dict."
        )
    # The columns by themselves: Postgres keeps the keys of JSON in an order of its own.
    return {"columns": list(frame.columns), "rows": [_json(row) for row in rows]}


def _json(value: Any) -> Any:
    """Values as JSON has them: decimals and times as text, what is no number as nothing."""
    if isinstance(value, Mapping):
        return {str(name): _json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
