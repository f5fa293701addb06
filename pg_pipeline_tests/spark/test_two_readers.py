"""Two readers, one meaning: the same rows and the same verdicts, on generated files."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pg_pipeline.spark.arrow_reader import arrow_can, read_with_arrow
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.reports import by_ordinal, new_reports
from pg_pipeline.spark.spark_reader import SparkRead, look, verdict
from pg_pipeline_tests.spark.landing import land

SCHEMA = (
    "b boolean, s short, i int, l long, f float, d double, t string, day date, at timestamp, local timestamp_ntz, "
    "tags array<string>, grid array<array<int>>, place struct<lat: double, name: string>, "
    "price decimal(12,2), large decimal(38,0), prices array<decimal(6,3)>"
)
CSV_SCHEMA = (
    "b boolean, s short, i int, l long, f float, d double, t string, day date, at timestamp, local timestamp_ntz, "
    "price decimal(12,2)"
)
TEXTS = [
    "",
    " ",
    "plain",
    "ünï 漢字 🙂",
    'quo"te',
    "back\\slash",
    "tab\there",
    "null",
    "NULL",
    "1",
    "true",
    "a,b",
    "x\ny",
    "\u200b",
]
# Every spelling that either reader might take its own way.
NUMBERS = [
    0,
    1,
    -1,
    32767,
    32768,
    2**31 - 1,
    2**31,
    2**63 - 1,
    2**63,
    1.0,
    1.5,
    -0.0,
    1e3,
    1e400,
    "1",
    "x",
    "",
    True,
    None,
]
DECIMALS = [
    1, -1.25, 1.255, -1.255, 0.001, 0.1e-1, 1e2, 1e-5, 1e400, -0.0, 9999999999.99, 9999999999.995, 99999999999,
    10**37, 10**38, 123.456, 1234.5, "1.5", "1,5", "", " 1", "1 ", "+1", ".5", "5.", "1e2", "1E2", "0001", "1d", "NaN",
    "x", "\u0661", True, [1], {"a": 1}, None,
]  # fmt: skip
TIMES = [
    "2026-01-31",
    "2026-02-30",
    "2026-01-31T23:59:59",
    "2026-01-31 23:59:59.123456",
    "2026-01-31T23:59:59Z",
    "2026-01-31T23:59:59+02:00",
    "2026-01-31T23:59:59.1+02:00",
    "2026-01-31T24:00:00",
    "2026-1-1",
    "2026",
    "yesterday",
    "",
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    1767225600,
    None,
]


def _value(kind: str, dice: random.Random) -> Any:
    if kind in ("day", "at", "local"):
        return dice.choice(TIMES)
    if kind in ("t",):
        return dice.choice([*TEXTS, None, 5, 1.50, True, {"a": 1}, [1]])
    if kind == "tags":
        return dice.choice([[], ["a", None], None, ["ü", "x"], "no", [1]])
    if kind == "grid":
        return dice.choice([[], [[1, 2], []], [None], None, [["x"]]])
    if kind == "place":
        return dice.choice([None, {}, {"lat": 1, "name": "x"}, {"lat": "y"}, {"name": None}])
    if kind == "prices":
        return dice.choice([[dice.choice(DECIMALS)], [1.5, None], None, 1.5])
    if kind in ("price", "large"):
        return dice.choice(DECIMALS)
    if kind == "b":
        return dice.choice([True, False, None, "true", 1])
    return dice.choice(NUMBERS)


GOOD: dict[str, Any] = {
    "b": True, "s": 7, "i": 8, "l": 9, "f": 1.5, "d": 2.5, "t": "x", "day": "2026-01-31",
    "at": "2026-01-31T23:59:59Z", "local": "2026-01-31T23:59:59", "tags": ["a"], "grid": [[1]], "place": {"lat": 1.0},
    "price": 12.5, "large": 5, "prices": [1.125],
}  # fmt: skip


def _json_files(dice: random.Random, count: int) -> dict[str, Any]:
    """Each file has at most one odd value, so that a verdict is about that value."""
    files: dict[str, Any] = {}
    for number in range(count):
        rows = [dict(GOOD) for _ in range(3)]
        kind = dice.choice(list(GOOD))
        rows[dice.randrange(3)][kind] = _value(kind, dice)
        for row in rows:
            for name in dice.sample(list(GOOD), dice.randrange(4)):
                if name != kind:
                    row.pop(name, None)
        files[f"{number}.json"] = rows
    return files


ODD_LINES = [
    b"null", b"[]", b'[{"i": 1}]', b"{}", b'{"i": 1}{"i": 2}', b'{"i": 1} x', b'{"i": 1, "i": 2}', b'{"i": 1,}',
    b"{'i': 1}", b'{"i": 01}', b'{"i": NaN}', b'{"d": NaN}', b'{"d": "NaN"}', b'{"t": "\\u0000"}', b'{"t": "\\ud83d"}',
    b'\xef\xbb\xbf{"i": 1}', b'{"i": 1}\r', b" \t ", b'{"t": "\xff"}', b'{"I": 1}', b'{"d": 1E5}', b'{"i": -0}', b"1",
    b'"x"', b'{"place": {"lat": 1, "lon": 2}}', b'{"t": "a\tb"}', b'{"i":1}//c', b'{"f": 3.4e39}', b'{"i": 1e2}',
    b'{"price": 01}', b'{"price": 1.}', b'{"price": .5}', b'{"price": +1}', b'{"price": NaN}', b'{"price": 1E400}',
    b'{"price": 12345678901234567890123456789012345678901234567890}', b'{"price": 1e999999999}', b'{"price": 0e9}',
    b'{"prices": [1.0005, 999.9995]}', b'{"prices": [1.0005, 999.9994]}', b'{"large": 1e37}', b'{"large": 0.5}',
]  # fmt: skip


def read_both(spark: Any, recipe: Recipe, files: Any) -> list[tuple[str, Any, Any]]:
    """Per file: (path, what Arrow says, what Spark says); None for Arrow when it leaves the file to Spark."""
    reports = new_reports(spark.sparkContext)
    frame = read_with_arrow(spark, recipe, files, reports)
    arrow_rows = _rows_by_file(frame)
    arrow = by_ordinal(reports.value)
    seen = look(recipe, files)
    good = [file for file in files if file.ordinal not in seen.bad]
    reading = SparkRead(spark, recipe, good, seen)
    spark_rows = _rows_by_file(reading.rows)
    tally = reading.count()
    said = []
    for file in files:
        mine = arrow[file.ordinal]
        theirs = seen.bad.get(file.ordinal) or verdict(file, tally, recipe)
        a = None if mine.doubtful else (mine.reason, arrow_rows.get(file.path, []) if not mine.reason else [])
        s = (theirs.reason, spark_rows.get(file.path, []) if not theirs.reason else [])
        said.append((file.path, a, s))
    return said


def _rows_by_file(frame: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in frame.toArrow().to_pylist():
        found.setdefault(row.pop("_file"), []).append(repr(row))
    return {path: sorted(rows) for path, rows in found.items()}


def disagreements(said: list[tuple[str, Any, Any]]) -> list[tuple[bytes, Any, Any]]:
    return [(Path(path).read_bytes()[:400], a, s) for path, a, s in said if a is not None and a != s]


@pytest.mark.parametrize("seed", range(2))
def test_json_values_mean_the_same_to_both_readers(spark: Any, tmp_path: Path, seed: int) -> None:
    files = land(tmp_path, _json_files(random.Random(seed), 150))
    said = read_both(spark, Recipe("json", SCHEMA), files)
    assert disagreements(said) == []
    assert sum(a is not None and a[0] is None for _, a, _ in said) > 50, "too few good files to mean anything"
    assert sum(a is not None and a[0] is not None for _, a, _ in said) > 10, "too few bad files to mean anything"


def test_odd_json_lines_mean_the_same_to_both_readers(spark: Any, tmp_path: Path) -> None:
    good = json.dumps({"i": 7}).encode() + b"\n"
    content = {f"{n}.json": good + line + b"\n" + good for n, line in enumerate(ODD_LINES)}
    content |= {f"first_{n}.json": line + b"\n" + good for n, line in enumerate(ODD_LINES)}
    said = read_both(spark, Recipe("json", SCHEMA), land(tmp_path, content))
    assert disagreements(said) == []


CELLS: dict[str, list[str]] = {
    "b": ["true", "FALSE", "True", "1", "yes", ""],
    "t": ["", '""', "plain", '"a,b"', '"a""b"', "ünï 漢字", '"two\nlines"', " spaced ", "null", "\\", "a\\b"],
    "price": ["1", "1.5", "-1.25", "1.255", "1e2", "99999999999", "9999999999.99", "x", "", "+1"],
}
NUMBER_CELLS = [
    "0", "1", "-1", "+1", " 1", "1 ", "32768", "2147483648", "9223372036854775808", "1.0", "1.5", "1e3", "1e400",
    "1d", "0x1", "NaN", "nan", "Inf", "x", "", "1_0",
]  # fmt: skip


def _csv_cell(kind: str, dice: random.Random) -> str:
    if kind in ("day", "at", "local"):
        return str(dice.choice([text for text in TIMES if text is not None]))
    return dice.choice(CELLS.get(kind, NUMBER_CELLS))


def _csv_files(dice: random.Random, count: int) -> dict[str, Any]:
    good = {"b": "true", "s": "7", "i": "8", "l": "9", "f": "1.5", "d": "2.5", "t": "x", "day": "2026-01-31",
            "at": "2026-01-31 23:59:59", "local": "2026-01-31 23:59:59", "price": "1.25"}  # fmt: skip
    files: dict[str, Any] = {}
    for number in range(count):
        rows = [dict(good) for _ in range(3)]
        kind = dice.choice(list(good))
        rows[dice.randrange(3)][kind] = _csv_cell(kind, dice)
        text = "\n".join([",".join(good), *(",".join(row.values()) for row in rows)])
        files[f"{number}.csv"] = (text + dice.choice(["", "\n", "\n\n"])).encode()
    return files


@pytest.mark.parametrize("seed", range(2))
def test_csv_values_mean_the_same_to_both_readers(spark: Any, tmp_path: Path, seed: int) -> None:
    files = land(tmp_path, _csv_files(random.Random(seed), 150))
    said = read_both(spark, Recipe("csv", CSV_SCHEMA), files)
    assert disagreements(said) == []
    assert sum(a is not None and a[0] is None for _, a, _ in said) > 40, "too few good files to mean anything"
    assert sum(a is not None and a[0] is not None for _, a, _ in said) > 10, "too few bad files to mean anything"


def test_parquet_means_the_same_to_both_readers(spark: Any, tmp_path: Path) -> None:
    schema = SCHEMA + ", y byte, m decimal(20,4), raw binary, counts map<string,int>"
    rows = spark.range(0, 50, 1, 1).selectExpr(
        "id % 2 = 0 b", "cast(id as short) s", "cast(id as int) i", "id l", "cast(id as float) f", "id / 3 d",
        "if(id % 5 = 0, null, concat('ü', id)) t", "date_add(date'2026-01-01', cast(id as int)) day",
        "timestamp'2026-01-01 00:00:00' + make_interval(0,0,0,0,0,0,id) at",
        "timestamp_ntz'2026-01-01 00:00:00' local", "array('a', null) tags", "array(array(1), null) grid",
        "named_struct('lat', 1.5D, 'name', 'x') place", "cast(id as byte) y", "cast(id as decimal(20,4)) m",
        "cast('x' as binary) raw", "map('a', 1) counts", "cast(id as decimal(12,2)) price",
        "cast(id as decimal(38,0)) large", "array(cast(1.5 as decimal(6,3))) prices",
    )  # fmt: skip
    rows.coalesce(1).write.parquet(str(tmp_path / "by_spark"))
    (one,) = (tmp_path / "by_spark").glob("*.parquet")
    pq.write_table(pq.read_table(one), tmp_path / "by_arrow.parquet")
    pq.write_table(pa.table({"i": pa.array([1], pa.int64())}), tmp_path / "other.parquet")
    content = {"a.parquet": one.read_bytes()} | {
        n: (tmp_path / n).read_bytes() for n in ("by_arrow.parquet", "other.parquet")
    }
    said = read_both(spark, Recipe("parquet", schema), land(tmp_path / "landing", content))
    assert disagreements(said) == []
    assert [len(a[1]) for _, a, _ in said if a] == [50, 50, 0]


@pytest.mark.parametrize(
    ("recipe", "arrow"),
    [
        (Recipe("json", SCHEMA), True),
        (Recipe("json", "price decimal(10,2), of struct<x: decimal(38,0)>"), True),
        (Recipe("json", "counts map<string,int>"), False),
        (Recipe("json", "x struct<at: timestamp>"), False),
        (Recipe("json", "id long", options={"multiLine": "true"}), False),
        (Recipe("csv", CSV_SCHEMA, options={"sep": ";", "header": "true"}), True),
        (Recipe("csv", CSV_SCHEMA, options={"encoding": "latin1"}), False),
        (Recipe("parquet", "counts map<string, decimal(10,2)>"), True),
    ],
)
def test_auto_takes_arrow_only_where_this_suite_holds(spark: Any, recipe: Recipe, arrow: bool) -> None:
    assert arrow_can(recipe) is arrow
