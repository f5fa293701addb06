"""Every kind of bad file, alone among good ones: set aside with its reason, by either reader, with one meaning."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.arrow_reader import read_file, read_plan
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.spark.spark_reader import look
from pg_pipeline.spark.spool import Spool
from pg_pipeline_tests.spark.landing import attempt, commit, land, lines

SCHEMA = "id long, name string"
GOOD = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
LONG = gzip.compress(lines([{"id": n, "name": f"{n * 7919}"} for n in range(5000)]))


def csv(header: str, *rows: str) -> bytes:
    return "\n".join([header, *rows, ""]).encode()


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


PARQUET = parquet(id=pa.array(range(5000), pa.int64()), name=[f"{n * 7919}" for n in range(5000)])

# name of the bad file, its content, the reason
JSON_KINDS: list[tuple[str, bytes, str]] = [
    ("truncated.json.gz", LONG[:-20], "corrupt"),
    ("cut_in_half.json.gz", LONG[: len(LONG) // 2], "corrupt"),
    ("flipped.json.gz", LONG[:900] + bytes(b ^ 0xFF for b in LONG[900:960]) + LONG[960:], "corrupt"),
    ("truncated.json.zst", pa.compress(lines(GOOD) * 500, "zstd", asbytes=True)[:-9], "corrupt"),
    ("not_gzip.json.gz", lines(GOOD), "wrong_format"),
    ("gzip_inside.json", gzip.compress(lines(GOOD)), "wrong_format"),
    ("binary.json", bytes(range(256)) * 40, "wrong_format"),
    ("parquet_inside.json", PARQUET, "wrong_format"),
    ("empty.json", b"", "empty"),
    ("empty.json.gz", gzip.compress(b""), "empty"),
    ("blank.json", b"\n \n", "empty"),
    ("bad_line.json", lines(GOOD) + b'{"id": 3, "name": \n', "bad_lines"),
    ("cut_line.json", lines(GOOD)[:-4], "bad_lines"),
    ("other_type.json", lines([*GOOD, {"id": "three"}]), "bad_lines"),
    ("text.json", b"Dear customer,\nplease find attached.\n", "bad_lines"),
    ("other_fields.json", lines([{"order": 1}, {"order": 2}]), "wrong_schema"),
    ("one_more_field.json", lines([*GOOD, {"id": 3, "price": 2}]), "wrong_schema"),
]
CSV_KINDS: list[tuple[str, bytes, str]] = [
    ("swapped.csv", csv("name,id", "a,1"), "wrong_header"),
    ("renamed.csv", csv("id,title", "1,a"), "wrong_header"),
    ("short.csv", csv("id", "1"), "wrong_header"),
    ("longer.csv", csv("id,name,price", "1,a,2"), "wrong_header"),
    ("no_header.csv", csv("1,a", "2,b"), "wrong_header"),
    ("other_type.csv", csv("id,name", "1,a", "two,b"), "bad_lines"),
    ("ragged.csv", csv("id,name", "1,a", "2,b,c"), "bad_lines"),
    ("empty.csv", b"", "empty"),
    ("gzip_inside.csv", gzip.compress(csv("id,name", "1,a")), "wrong_format"),
    ("truncated.csv.gz", gzip.compress(csv("id,name", *(f"{n},{n * 7919}" for n in range(5000))))[:-20], "corrupt"),
]
PARQUET_KINDS: list[tuple[str, bytes, str]] = [
    ("truncated.parquet", PARQUET[:-100], "corrupt"),
    ("flipped.parquet", PARQUET[:60] + bytes(b ^ 0xFF for b in PARQUET[60:900]) + PARQUET[900:], "corrupt"),
    ("json_inside.parquet", lines(GOOD), "wrong_format"),
    ("empty.parquet", b"", "empty"),
    ("other_type.parquet", parquet(id=["1"], name=["a"]), "wrong_schema"),
    ("lacks_a_column.parquet", parquet(id=[1]), "wrong_schema"),
    ("one_more_column.parquet", parquet(id=[1], name=["a"], price=[2]), "wrong_schema"),
]
FORMATS: dict[str, tuple[list[tuple[str, bytes, str]], bytes]] = {
    "json": (JSON_KINDS, lines(GOOD)),
    "csv": (CSV_KINDS, csv("id,name", "1,a", "2,b")),
    "parquet": (PARQUET_KINDS, parquet(id=[1, 2], name=["a", "b"])),
}


@pytest.mark.parametrize("reader", ["arrow", "auto", "spark"])
@pytest.mark.parametrize("file_format", list(FORMATS))
def test_every_kind_of_bad_file_is_set_aside_with_its_reason(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, file_format: Any, reader: Any
) -> None:
    kinds, good = FORMATS[file_format]
    content: dict[str, Any] = {f"good_{n}.{file_format}": good for n in range(2)}
    content |= {name: data for name, data, _ in kinds}
    done = commit(
        spark,
        Recipe(file_format, SCHEMA, reader=reader),
        land(tmp_path, content),
        attempt(),
        PostgresTable("orders"),
        dsn,
    )
    found = dict(zip(content, done.result.files, strict=True))
    assert {name: found[name].reason for name, _, _ in kinds} == {name: reason for name, _, reason in kinds}
    assert all(found[name].detail for name, _, _ in kinds)
    assert {o.state for name, o in found.items() if name.startswith("good_")} == {"committed"}
    rows = conn.execute("select id, name, count(*) from orders group by 1, 2 order by 1").fetchall()
    assert rows == [(1, "a", 2), (2, "b", 2)]


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_missing_and_changed_files_are_set_aside(spark: Any, dsn: str, conn: Any, tmp_path: Path, reader: Any) -> None:
    files = land(tmp_path, {"good.json": GOOD, "gone.json": GOOD, "longer.json": GOOD, "touched.json": GOOD})
    (tmp_path / "gone.json").unlink()
    with (tmp_path / "longer.json").open("ab") as more:
        more.write(b'{"id": 3}\n')
    os.utime(tmp_path / "touched.json", (1, 1))
    done = commit(spark, Recipe("json", SCHEMA, reader=reader), files, attempt(), PostgresTable("orders"), dsn)
    assert [o.reason for o in done.result.files] == [None, "missing", "changed", "changed"]
    assert conn.execute("select count(*) from orders").fetchone() == (2,)


@pytest.mark.parametrize("reader", ["arrow", "spark"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(Path.unlink, "vanished"), (lambda path: path.write_bytes(lines([{"id": 9}])), "changed")],
    ids=["vanished", "changed"],
)
def test_a_file_that_goes_or_changes_between_look_and_read_is_set_aside(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, reader: Any, spoil: Callable[[Path], Any], reason: str
) -> None:
    """The transform is called when the files have been planned and not yet read."""
    files = land(tmp_path, {"good.json": GOOD, "victim.json": GOOD})

    def transform(df: Any, _batch: Any) -> Any:
        victim = tmp_path / "victim.json"
        if victim.exists() and victim.stat().st_size == files[1].size:
            spoil(victim)
        return df

    recipe = Recipe("json", SCHEMA, reader=reader, transform=transform)
    done = commit(spark, recipe, files, attempt(), PostgresTable("orders"), dsn)
    # The Arrow reader looks for the first time when it reads: to it, the file was never there.
    expected = "missing" if (reader, reason) == ("arrow", "vanished") else reason
    assert [o.reason for o in done.result.files] == [None, expected]
    assert conn.execute("select count(*) from orders").fetchone() == (2,)


def test_a_file_that_vanishes_while_it_is_read_is_set_aside(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from pg_pipeline.spark import arrow_reader

    (file,) = land(tmp_path, {"victim.json": GOOD})
    read = arrow_reader.READERS["json"]

    def read_and_lose(path: str, plan: Any) -> Any:
        yield from read(path, plan)
        Path(path).unlink()

    monkeypatch.setitem(arrow_reader.READERS, "json", read_and_lose)
    plan = read_plan(Recipe("json", SCHEMA))
    with Spool(plan.schema) as spool:
        assert read_file(file, plan, spool).reason == "vanished"


def test_a_file_that_may_not_be_read_is_set_aside(spark: Any, tmp_path: Path) -> None:
    (file,) = land(tmp_path, {"secret.json": GOOD})
    (tmp_path / "secret.json").chmod(0)
    plan = read_plan(Recipe("json", SCHEMA))
    root = os.geteuid() == 0
    try:
        if root:
            os.chmod(tmp_path, 0o755)
            for parent in tmp_path.parents:
                if str(parent).startswith("/tmp/pytest"):
                    os.chmod(parent, 0o755)
            os.seteuid(65534)
        with Spool(plan.schema) as spool:
            assert read_file(file, plan, spool).reason == "no_permission"
        assert look(Recipe("json", SCHEMA), [file]).bad[0].reason == "no_permission"
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_bad_lines_within_the_tolerance_are_left_out_and_counted(
    spark: Any, dsn: str, conn: Any, tmp_path: Path, reader: Any
) -> None:
    content: dict[str, Any] = {
        "two.json": lines(GOOD) + b'{oops\n{"id": "x"}\n',
        "three.json": lines(GOOD) + b'{oops\n{"id": "x"}\nnope\n',
    }
    files = land(tmp_path, content)
    recipe = Recipe("json", SCHEMA, reader=reader, max_bad_lines=2)
    done = commit(spark, recipe, files, attempt(), PostgresTable("orders"), dsn)
    assert [(o.state, o.rows_in, o.rows_out) for o in done.result.files] == [("committed", 4, 2), ("quarantined", 0, 0)]
    assert done.result.files[0].detail == "2 bad lines left out"
    assert done.result.metadata["bad_lines"] == 2
    assert conn.execute("select count(*) from orders").fetchone() == (2,)


def test_a_batch_of_nothing_but_bad_files_still_has_a_result(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    for reader in ("arrow", "spark"):
        recipe: Any = Recipe("json", SCHEMA, reader=reader)  # type: ignore[arg-type]
        files = land(tmp_path, {"a.json": b"", "b.json": b"\n"})
        done = commit(spark, recipe, files, attempt(), PostgresTable("orders"), dsn)
        assert [o.reason for o in done.result.files] == ["empty", "empty"]
    assert conn.execute("select count(*) from orders").fetchone() == (0,)


def test_odd_names_are_just_names(spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    names = [
        "a b.json",
        "a[1].json",
        "a{x}.json",
        "a*b.json",
        "a%20b.json",
        "ü.json",
        "a,b.json",
        "a#b.json",
        "a?.json",
    ]
    for reader in ("arrow", "spark"):
        recipe: Any = Recipe("json", SCHEMA, reader=reader)  # type: ignore[arg-type]
        files = land(tmp_path, dict.fromkeys(names, GOOD))
        commit(spark, recipe, files, attempt(), PostgresTable("orders"), dsn)
        rows = conn.execute("select _file, count(*) from orders group by 1").fetchall()
        assert sorted(rows) == sorted((str(tmp_path / name), 2) for name in names), reader


def test_the_table_knows_every_reason() -> None:
    from pg_pipeline.spark.files import REASONS

    shown = {reason for kinds, _ in FORMATS.values() for _, _, reason in kinds}
    assert set(REASONS) - shown == {"missing", "vanished", "changed", "no_permission", "outside", "too_large", "hidden"}
