"""What the Arrow readers share: the plan they follow and the pieces they return. Sent to executors: no Spark here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pg_pipeline.spark.files import LOCAL, BadFile
from pg_pipeline.spark.values import NeedsSpark, cast
from pg_pipeline.storage import Storage


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A recipe as an executor needs it. `strict` refuses what only Spark could judge, instead of asking for Spark."""

    format: str
    fields: pa.Schema
    drift: str = "quarantine"
    max_bad_lines: int = 0
    max_file_bytes: int = 4 << 30
    rescued_column: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    roots: tuple[str, ...] = ()
    storage: Storage = LOCAL

    @property
    def schema(self) -> pa.Schema:
        """What the readers return."""
        if self.rescued_column is None:
            return self.fields
        return self.fields.append(pa.field(self.rescued_column, pa.string()))


@dataclass(slots=True)
class Piece:
    """Some rows of one file, in the plan's schema."""

    table: pa.Table
    rows_in: int
    rescued: int = 0


@dataclass(slots=True)
class BadLines:
    """Counts a file's bad lines and gives the verdict when there are too many."""

    allowed: int
    count: int = 0
    first: str = ""

    def add(self, where: str, count: int = 1) -> None:
        self.first = self.first or where
        self.count += count
        if self.count > self.allowed:
            raise BadFile("bad_lines", f"more than {self.allowed} bad lines; the first: {self.first}"[:300])


def typed(
    texts: pa.Table, plan: ReadPlan, bad: BadLines, first_row: int, rescued: list[dict[str, str] | None]
) -> Piece:
    """Text columns to the plan's types; a row with a text that does not fit is rescued, or a bad line.

    `rescued` has what was already rescued of each row.
    """
    columns: list[pa.Array] = []
    unfit: pa.Array | None = None
    for wanted in plan.fields:
        column = texts.column(wanted.name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_string(array.type) and not pa.types.is_string(wanted.type):
            try:
                array_typed, wrong = cast(array, wanted.type)
            except NeedsSpark:
                if not plan.strict:
                    raise
                array_typed, wrong = pa.nulls(len(array), wanted.type), pc.is_valid(array)
            if wrong is not None and plan.rescued_column is not None:
                for row in pc.indices_nonzero(wrong).to_pylist():
                    rescued[row] = {**(rescued[row] or {}), wanted.name: array[row].as_py()}
            elif wrong is not None:
                unfit = wrong if unfit is None else pc.or_(unfit, wrong)
            array = array_typed
        columns.append(array)
    if plan.rescued_column is not None:
        columns.append(pa.array([None if r is None else _json(r) for r in rescued], pa.string()))
    table = pa.Table.from_arrays(columns, schema=plan.schema)
    rows_in = table.num_rows
    if unfit is not None and pc.any(unfit).as_py():
        rows = pc.indices_nonzero(unfit).to_pylist()
        bad.add(f"row {first_row + rows[0]} has a value of another type", len(rows))
        table = table.filter(pc.invert(unfit))
    return Piece(table, rows_in, sum(1 for r in rescued if r is not None))


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))
