"""JSON lines with pyarrow: a chunk of whole lines at a time; what pyarrow refuses is judged line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import IO, Any

import pyarrow as pa
import pyarrow.json as pj

from pg_pipeline.spark.files import LINE_BYTES, BadFile, check_text, open_text
from pg_pipeline.spark.pieces import BadLines, Piece, ReadPlan, typed
from pg_pipeline.spark.values import NeedsSpark

CHUNK = 8 << 20
BLANK = b" \t\r"
BOM = b"\xef\xbb\xbf"
# pyarrow crashes the process (a segmentation fault) on a block that begins with a bare null.
_FIRST_NULL = re.compile(rb"[ \t\r]*n")
# A pattern that begins with a letter of its own is searched twenty times as fast as one with a choice.
_BARE_NULL = re.compile(rb"\n[ \t\r]*n")
# pyarrow also takes these for numbers, and bytes that are not UTF-8 for text.
_NOT_NUMBERS = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf)")
_INTEGER = re.compile(r"-?\d+\Z")


class _Number(str):
    """A number as it is written: Spark keeps that text where the schema says string."""


class _BadLine(Exception):
    pass


def read_json(path: str, plan: ReadPlan) -> Iterator[Piece]:
    reader = _JsonReader(plan)
    found = False
    with open_text(path, plan.max_file_bytes, plan.storage) as stream:
        for chunk in whole_lines(stream):
            if reader.line == 1:
                check_text(chunk[:4096])
            piece = reader.read(chunk.removeprefix(BOM) if reader.line == 1 else chunk)
            if piece is not None:
                found = True
                yield piece
    if not found:
        raise BadFile("empty", "the file has no rows")


def whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The stream in chunks that end where a line ends."""
    rest: list[bytes] = []
    held = 0
    while block := stream.read(CHUNK):
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            rest.append(block)
            held += len(block)
            if held > LINE_BYTES:
                raise BadFile("too_large", f"a line of more than {LINE_BYTES} bytes")
            continue
        yield b"".join([*rest, block[:cut]])
        rest = [block[cut:]]
        held = len(rest[0])
    tail = b"".join(rest)
    if tail:
        yield tail


class _JsonReader:
    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.bad = BadLines(plan.max_bad_lines)
        # Times are read as text: pyarrow's own idea of them differs from Spark's.
        self.raw = pa.schema([pa.field(f.name, pa.string() if _is_time(f.type) else f.type) for f in plan.fields])
        self.parse = pj.ParseOptions(explicit_schema=self.raw, unexpected_field_behavior="error")
        self.decimals = [f.name for f in self.raw if "decimal" in str(f.type)]
        self.line = 1

    def read(self, chunk: bytes) -> Piece | None:
        lines = chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        if not chunk.strip():
            self.line += lines
            return None
        piece = self._fast(chunk, lines)
        if piece is None:
            piece = self._slow(chunk)
        self.line += lines
        return piece

    def _fast(self, chunk: bytes, lines: int) -> Piece | None:
        """The whole chunk at once, or None when a line of it needs a look of its own."""
        if BOM in chunk or _FIRST_NULL.match(chunk) or _BARE_NULL.search(chunk) or not _is_utf8(chunk):
            return None
        if (b"NaN" in chunk or b"Inf" in chunk) and _NOT_NUMBERS.search(chunk):
            return None
        try:
            table = pj.read_json(
                pa.BufferReader(chunk),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
                parse_options=self.parse,
            )
            for name in self.decimals:  # pyarrow lets more digits in than the type has
                table.column(name).validate(full=True)
        except pa.ArrowInvalid:
            return None
        # Two objects on one line are two rows to pyarrow, and one to Spark.
        if table.num_rows != lines and table.num_rows != sum(1 for line in chunk.split(b"\n") if line.strip(BLANK)):
            return None
        nothing: list[dict[str, str] | None] = [None] * table.num_rows if self.plan.rescued_column else []
        return typed(table, self.plan, self.bad, self.line, nothing)

    def _slow(self, chunk: bytes) -> Piece:
        rows: list[dict[str, Any]] = []
        rescued: list[dict[str, str] | None] = []
        seen = 0
        for number, line in enumerate(chunk.split(b"\n"), start=self.line):
            if not line.strip(BLANK):
                continue
            seen += 1
            try:
                row, saved = self._row(line, number)
            except _BadLine as error:
                self.bad.add(f"line {number}: {error}")
                continue
            except RecursionError:
                self.bad.add(f"line {number}: nested too deeply")
                continue
            except NeedsSpark as error:
                if not self.plan.strict:
                    raise
                self.bad.add(f"line {number}: {error}")
                continue
            rows.append(row)
            rescued.append(saved or None)
        piece = typed(pa.Table.from_pylist(rows, schema=self.raw), self.plan, self.bad, self.line, rescued)
        piece.rows_in = seen
        return piece

    def _row(self, line: bytes, number: int) -> tuple[dict[str, Any], dict[str, str]]:
        parsed = _parse(line)
        rescue = self.plan.rescued_column is not None
        row: dict[str, Any] = {}
        saved: dict[str, str] = {}
        for name, value in parsed.items():
            index = self.raw.get_field_index(name)
            if index < 0:
                if not rescue:
                    raise BadFile("wrong_schema", f"line {number} has the field {name!r}, which the schema lacks"[:300])
                saved[name] = _text(value)
                continue
            try:
                row[name] = _convert(value, self.raw.field(index).type, number)
            except _BadLine:
                if not rescue:
                    raise
                saved[name] = _text(value)
        return row, saved


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(
            line.decode("utf-8"),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_refuse,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError:
        raise _BadLine("not UTF-8") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise NeedsSpark("more than one value on a line") from None
        raise _BadLine(f"not JSON ({error.msg})") from None
    if isinstance(value, dict):
        if b"\\u" in line and _has_half_a_pair(value):
            raise NeedsSpark("half of a surrogate pair")
        return value
    if value is None or isinstance(value, list):
        raise NeedsSpark("a line that is no object")
    raise _BadLine("not a JSON object")


def _has_half_a_pair(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NeedsSpark("a field that occurs twice")
    return found


def _refuse(token: str) -> None:
    raise _BadLine(f"not JSON ({token})")


def _convert(value: Any, to: pa.DataType, number: int) -> Any:
    """A JSON value as Spark's reader would take it for this type."""
    if value is None:
        return None
    if pa.types.is_string(to):
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return str(value)
        raise NeedsSpark("an object or array where the schema says string")
    if pa.types.is_list(to) and isinstance(value, list):
        return [_convert(item, to.value_type, number) for item in value]
    if pa.types.is_struct(to) and isinstance(value, dict):
        return _struct(value, to, number)
    if pa.types.is_decimal(to):
        return _decimal(value, to)
    return _SCALARS.get(to, _mismatch)(value)


def _struct(value: dict[str, Any], to: pa.StructType, number: int) -> dict[str, Any]:
    found = {}
    for name, item in value.items():
        index = to.get_field_index(name)
        if index < 0:
            raise BadFile("wrong_schema", f"line {number} has the nested field {name!r}, which the schema lacks"[:300])
        found[name] = _convert(item, to.field(index).type, number)
    return found


def _mismatch(_value: Any) -> Any:
    raise _BadLine("a value of another type")


def _boolean(value: Any) -> bool:
    return value if isinstance(value, bool) else bool(_mismatch(value))


def _integer(bits: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if not isinstance(value, _Number) or not _INTEGER.match(value):
            raise _BadLine("a value of another type")
        if len(value) > 20:  # and Python would raise beyond some thousand digits
            raise _BadLine("a number out of range")
        result = int(value)
        if not -(1 << (bits - 1)) <= result < 1 << (bits - 1):
            raise _BadLine("a number out of range")
        return result

    return convert


def _float(value: Any) -> float:
    if isinstance(value, _Number):
        return float(value)
    if isinstance(value, str):
        raise NeedsSpark("a text where the schema says number")
    return float(_mismatch(value))


def _decimal(value: Any, to: pa.Decimal128Type) -> Decimal:
    """Rounded to the type's scale, as Spark does."""
    if not isinstance(value, _Number):
        return Decimal(_float(value))
    try:
        # What has more digits than the context is refused.
        return Decimal(value).quantize(Decimal((0, (1,), -to.scale)), context=Context(to.precision, ROUND_HALF_UP))
    except InvalidOperation:
        raise _BadLine("a number out of range") from None


_SCALARS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.bool_(): _boolean,
    pa.int16(): _integer(16),
    pa.int32(): _integer(32),
    pa.int64(): _integer(64),
    pa.float32(): _float,
    pa.float64(): _float,
}


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
