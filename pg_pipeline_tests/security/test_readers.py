"""What a file holds may be made to hurt its reader: it is set aside with a reason, soon, and its neighbours go on."""

import gzip
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pg_pipeline.spark.arrow_reader import read_file
from pg_pipeline.spark.files import LINE_BYTES
from pg_pipeline.spark.pieces import ReadPlan
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.reports import FileReport
from pg_pipeline.spark.spark_reader import look
from pg_pipeline.spark.spool import Spool
from pg_pipeline_tests.spark.landing import land

FIELDS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.int64()))])
SCHEMA = "id long, name string"
MEGABYTE = 1 << 20


def read(folder: Path, name: str, data: bytes, **options: Any) -> FileReport:
    (file,) = land(folder, {name: data})
    file_format = "csv" if ".csv" in name else "parquet" if ".parquet" in name else "json"
    fields = FIELDS if file_format == "json" else FIELDS.remove(2)
    plan = ReadPlan(file_format, fields, strict=True, **options)
    with Spool(plan.schema) as spool:
        return read_file(file, plan, spool)


@pytest.fixture
def bounded() -> Iterator[None]:
    """Red instead of endless: thirty seconds of this process's own CPU, for what takes less than one."""

    def over(*_: object) -> None:
        raise AssertionError("a megabyte took thirty seconds of CPU")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, 30)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("deep.json", b"[" * 200_000, "bad_lines"),
        ("deeper.json", b'{"name": ' * 200_000 + b"1" + b"}" * 200_000, "bad_lines"),
        ("tags.json", b'{"tags": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "bad_lines"),
        ("digits.json", b'{"id": ' + b"9" * MEGABYTE + b"}", "bad_lines"),
        ("commas.json", b'{"id": 1}' + b"," * MEGABYTE, "bad_lines"),
        ("blank.json", b"\n" * MEGABYTE + b"x\n", "bad_lines"),
        ("spaces.json", (b"\n" + b" " * 999) * 1000 + b"null\n", "bad_lines"),
        ("names.csv", b"id," * MEGABYTE, "wrong_header"),
        ("field.csv", b'id,"' + b"n" * MEGABYTE + b'"\n1,a\n', "wrong_header"),
        ("return.csv", b"id\rname\r1,a\n", "wrong_header"),
        ("quote.csv", b'id,name\n1,"' + b"a\n" * 8 * MEGABYTE, "bad_lines"),
    ],
)
@pytest.mark.usefixtures("bounded")
def test_content_made_to_hurt_is_judged_in_linear_time(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    """Regular expressions that backtrack, recursion, numbers of a million digits: an hour, or a batch that fails."""
    assert read(tmp_path, name, data).reason == reason


@pytest.mark.parametrize("name", ["bomb.json.gz", "bomb.csv.gz", "bomb.json.zst", "bomb.csv.zst"])
def test_a_small_file_that_unpacks_without_end_is_set_aside(tmp_path: Path, name: str) -> None:
    row = b"1," + b"a" * 997 + b"\n" if ".csv" in name else b'{"id": 1, "name": "' + b"a" * 1000 + b'"}\n'
    data = (b"id,name\n" if ".csv" in name else b"") + row * (20 * MEGABYTE // len(row))
    packed = gzip.compress(data) if name.endswith(".gz") else pa.compress(data, "zstd", asbytes=True)
    assert len(packed) < MEGABYTE // 4
    report = read(tmp_path, name, packed, max_file_bytes=4 * MEGABYTE)
    assert (report.reason, report.detail) == (
        "too_large",
        "it unpacks to more than 4194304 bytes: raise the pipeline's max_file_bytes if that is meant",
    )
    assert read(tmp_path, name, packed, max_file_bytes=64 * MEGABYTE).reason is None


def test_rows_that_take_more_than_their_file_are_counted_too(tmp_path: Path) -> None:
    """Empty objects are three bytes a row in a file; a column of one repeated text is next to nothing in Parquet."""
    assert read(tmp_path, "rows.json", b"{}\n" * MEGABYTE, max_file_bytes=4 * MEGABYTE).reason == "too_large"
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1] * MEGABYTE, "name": ["a" * 100] * MEGABYTE}), sink)
    data = sink.getvalue().to_pybytes()
    assert len(data) < MEGABYTE // 8
    assert read(tmp_path, "rows.parquet", data, max_file_bytes=16 * MEGABYTE).reason == "too_large"


def test_a_line_without_end_is_not_kept_in_memory(tmp_path: Path) -> None:
    line = gzip.compress(b"[" + b" " * (LINE_BYTES + (16 << 20)), 1)
    report = read(tmp_path, "line.json.gz", line)
    assert (report.reason, str(report.detail)[:12]) == ("too_large", "a line of mo")


@pytest.mark.parametrize("name", ["bomb.json.gz", "bomb.json.zst"])
def test_sparks_reader_is_not_given_what_unpacks_without_end(spark: Any, tmp_path: Path, name: str) -> None:
    data = b'{"id": 1, "name": "a"}\n' * MEGABYTE
    packed = gzip.compress(data) if name.endswith(".gz") else pa.compress(data, "zstd", asbytes=True)
    (file,) = land(tmp_path, {name: packed})
    found = look(Recipe("json", SCHEMA, reader="spark", max_file_bytes=4 * MEGABYTE), [file])
    assert found.bad[0].reason == "too_large"
    assert look(Recipe("json", SCHEMA, reader="spark"), [file]).bad == {}
