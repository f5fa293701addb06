"""What a sink is. A sink of one's own implements `Sink`; `conformance.py` checks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from pg_pipeline.coordination.types import JSON, AttemptRef

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

EXECUTION, BATCH, FILE = "_execution", "_batch", "_file"
# The same as `_file`, for counting only: the sink leaves it out.
COUNTED_FILE = "_file_counted"


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Staged:
    """What an attempt staged. `memory` is the sink's own, and never leaves the process."""

    rows: int
    location: Mapping[str, JSON]
    rows_by_file: Mapping[str, int] | None = None
    memory: Any = field(default=None, repr=False, compare=False)


@runtime_checkable
class Sink(Protocol):
    """Where a batch's rows go. Nothing that `stage` writes may be visible before `publish` commits."""

    @property
    def name(self) -> str:
        """What kind of sink it is, such as `postgres`; noted with its location for the reaper."""

    def location(self, attempt: AttemptRef) -> dict[str, JSON]:
        """Where this attempt will stage; known before it does, so that its leavings can be found."""

    def prepare(self, conn: psycopg.Connection[Any], schema: StructType) -> None:
        """Create the target, or check it against the rows' schema; idempotent."""

    def stage(self, df: DataFrame, attempt: AttemptRef, dsn: str) -> Staged:
        """Run the job and put its rows where nobody reads."""

    def publish(self, conn: psycopg.Connection[Any], staged: Staged, attempt: AttemptRef) -> int:
        """Show the staged rows instead of any earlier ones of (execution, batch), in the caller's transaction."""

    def discard(self, conn: psycopg.Connection[Any], attempt: AttemptRef) -> None:
        """Remove what this attempt staged and did not publish; idempotent, also when nothing was staged."""


def visible(schema: StructType) -> StructType:
    """The columns that a target has: all but the one that is there for counting."""
    from pyspark.sql.types import StructType

    return StructType([f for f in schema.fields if f.name != COUNTED_FILE])


def count_files(batch: pa.RecordBatch, counts: Counter[str]) -> pa.RecordBatch:
    """Adds the batch's rows per file to `counts`; the batch without the column that was only for that."""
    name = COUNTED_FILE if COUNTED_FILE in batch.schema.names else FILE if FILE in batch.schema.names else None
    if name is None:
        return batch
    for found in pc.value_counts(batch.column(name)).to_pylist():
        if found["values"] is not None:
            counts[found["values"]] += found["counts"]
    if name == FILE:
        return batch
    return batch.remove_column(batch.schema.get_field_index(name))


def with_provenance(batch: pa.RecordBatch, execution: str, number: int) -> pa.RecordBatch:
    """The rows with the execution and the batch that they came with."""
    executions = pa.repeat(pa.scalar(execution, pa.string()), batch.num_rows)
    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, executions, numbers], [*batch.schema.names, EXECUTION, BATCH])


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def map_in_arrow(df: DataFrame, task: Task, result: str) -> DataFrame:
    """`df.mapInArrow(task, result)` for any column names: PySpark cannot find a column with a dot in its name."""
    names = df.columns
    plain = df.toDF(*(f"c{i}" for i in range(len(names))))
    return plain.mapInArrow(Renamed(task, names), result)


@dataclass(frozen=True, slots=True)
class Renamed:
    """Gives the columns their names back, on the executor."""

    task: Task
    names: list[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(self.names) for batch in batches)


def counts_files(names: list[str]) -> bool:
    return FILE in names or COUNTED_FILE in names
