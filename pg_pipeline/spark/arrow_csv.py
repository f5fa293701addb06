"""CSV with pyarrow: the header must be the schema's; every field is read as text, then given its type."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pc

from pg_pipeline.spark.files import BadFile, check_text, open_text
from pg_pipeline.spark.pieces import BadLines, Piece, ReadPlan, typed
from pg_pipeline.spark.values import NeedsSpark

BLOCK = 8 << 20
HEADER_BYTES = 1 << 20


def read_csv(path: str, plan: ReadPlan) -> Iterator[Piece]:
    bad = BadLines(plan.max_bad_lines)
    with open_text(path, plan.max_file_bytes, plan.storage) as raw, io.BufferedReader(raw) as stream:  # type: ignore[type-var]
        check_text(stream.peek(4096)[:4096])
        header = parse_header(stream, plan)
        extra = check_header(header, plan.fields.names, rescue=plan.rescued_column is not None)
        if stream.peek(1):
            yield from _rows(stream, header, extra, plan, bad)


def parse_header(stream: IO[bytes], plan: ReadPlan) -> list[str]:
    line = stream.readline(HEADER_BYTES)
    if not line.strip():
        raise BadFile("empty", "the file has no header and no rows")
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise BadFile("wrong_format", "the header is not UTF-8 text") from None
    try:
        return next(csv.reader([text], delimiter=separator(plan), quotechar=plan.options.get("quote", '"')))
    except csv.Error as error:
        raise BadFile("wrong_header", f"the header is not CSV ({error})") from None


def check_header(header: list[str], names: list[str], *, rescue: bool) -> list[str]:
    """The columns to rescue; BadFile when the header is another one."""
    extra = [name for name in header if name not in names]
    missing = [name for name in names if name not in header]
    if len(set(header)) != len(header):
        raise BadFile("wrong_header", "a column occurs twice in the header")
    if missing or (extra and not rescue) or (header != names and not rescue):
        said = f"missing {missing}" if missing else f"unknown {extra}" if extra else "another order"
        raise BadFile("wrong_header", f"{said}; the header is {header}, the schema has {names}"[:300])
    return extra


def separator(plan: ReadPlan) -> str:
    return plan.options.get("sep") or plan.options.get("delimiter") or ","


def _rows(stream: Any, header: list[str], extra: list[str], plan: ReadPlan, bad: BadLines) -> Iterator[Piece]:
    skipped: list[int] = [0]

    def skip(row: Any) -> str:
        skipped[0] += 1
        where = f"row {row.number}" if row.number is not None else "a row"
        wrong.append(f"{where} has {row.actual_columns} fields instead of {row.expected_columns}")
        return "skip"

    wrong: list[str] = []
    try:
        reader = pc.open_csv(
            stream,
            read_options=pc.ReadOptions(use_threads=False, block_size=BLOCK, column_names=header),
            parse_options=pc.ParseOptions(
                delimiter=separator(plan),
                quote_char=plan.options.get("quote", '"'),
                newlines_in_values=True,
                invalid_row_handler=skip,
            ),
            convert_options=pc.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
        first_row = 1
        for batch in reader:
            rows_skipped = skipped[0]
            skipped[0] = 0
            for where in wrong:
                bad.add(where)
            wrong.clear()
            table = pa.Table.from_batches([batch])
            piece = typed(table, plan, bad, first_row, _extras(table, extra, plan))
            piece.rows_in += rows_skipped
            first_row += piece.rows_in
            yield piece
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        if plan.strict or "UTF8" in str(error):
            bad.add(" ".join(str(error).split())[:200], plan.max_bad_lines + 1)
        raise NeedsSpark(str(error)) from None
    for where in wrong:
        bad.add(where)
    if skipped[0]:
        yield Piece(plan.schema.empty_table(), skipped[0])


def _extras(table: pa.Table, extra: list[str], plan: ReadPlan) -> list[dict[str, str] | None]:
    if plan.rescued_column is None:
        return []
    if not extra:
        return [None] * table.num_rows
    rows = table.select(extra).to_pylist()
    return [{name: text for name, text in row.items() if text is not None} or None for row in rows]
