"""Parquet with pyarrow: the footer's schema must be the pipeline's, up to widening that loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pg_pipeline.spark.files import BadFile, open_raw, verdicts
from pg_pipeline.spark.pieces import Piece, ReadPlan

ROWS = 64 * 1024


def read_parquet(path: str, plan: ReadPlan) -> Iterator[Piece]:
    with open_raw(path, plan.storage) as raw:
        check_magic(raw.read(4))
        raw.seek(0)
        with verdicts():
            file = pq.ParquetFile(pa.PythonFile(raw, mode="r"))
        extra = check_schema(file.schema_arrow, plan.fields, rescue=plan.rescued_column is not None)
        for batch in file.iter_batches(ROWS, use_threads=False):
            yield _piece(pa.Table.from_batches([batch]), extra, plan)


def check_magic(head: bytes) -> None:
    if not head:
        raise BadFile("empty", "the file has no bytes")
    if head != b"PAR1":
        raise BadFile("wrong_format", "the content is not Parquet")


def check_schema(found: pa.Schema, wanted: pa.Schema, *, rescue: bool) -> list[str]:
    """The columns to rescue; BadFile when the file's schema is another one."""
    extra = [name for name in found.names if name not in wanted.names]
    if extra and not rescue:
        raise BadFile("wrong_schema", f"the file has the columns {extra}, which the schema lacks"[:300])
    for field in wanted:
        index = found.get_field_index(field.name)
        if index < 0:
            raise BadFile("wrong_schema", f"the file lacks the column {field.name!r}")
        if not fits(found.field(index).type, field.type):
            raise BadFile(
                "wrong_schema", f"{field.name!r} is {found.field(index).type} in the file, {field.type} in the schema"
            )
    return extra


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """The same type, or a narrower one that every reader widens without loss."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        found = pa.string()
    if pa.types.is_large_binary(found):
        found = pa.binary()
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return found.unit in ("us", "ms") and (found.tz is None) == (wanted.tz is None)
    if pa.types.is_signed_integer(found) and pa.types.is_signed_integer(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if (pa.types.is_list(found) or pa.types.is_large_list(found)) and pa.types.is_list(wanted):
        return fits(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        names = [f.name for f in found]
        return names == [f.name for f in wanted] and all(
            fits(a.type, b.type) for a, b in zip(found, wanted, strict=True)
        )
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return fits(found.key_type, wanted.key_type) and fits(found.item_type, wanted.item_type)
    return bool(found == wanted)


def _piece(table: pa.Table, extra: list[str], plan: ReadPlan) -> Piece:
    columns = [table.column(field.name).cast(field.type) for field in plan.fields]
    rescued = 0
    if plan.rescued_column is not None:
        texts: list[str | None] = [None] * table.num_rows
        if extra:
            for i, row in enumerate(table.select(extra).to_pylist()):
                kept = {name: value for name, value in row.items() if value is not None}
                texts[i] = json.dumps(kept, default=str, ensure_ascii=False) if kept else None
            rescued = sum(1 for text in texts if text is not None)
        columns.append(pa.chunked_array([pa.array(texts, pa.string())]))
    return Piece(pa.Table.from_arrays(columns, schema=plan.schema), table.num_rows, rescued)
