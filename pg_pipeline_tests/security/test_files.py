"""What producers land may be anything: its names are data, and nothing outside the roots is read."""

import os
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination.types import BatchFile
from pg_pipeline.errors import ConfigurationError, InvalidInput
from pg_pipeline.pipelines import FilePipeline, landing
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline.storage.roots import is_inside
from pg_pipeline_tests.spark.landing import attempt, commit, listed

ROW = b'{"id": 1, "name": "a"}\n'
SCHEMA = "id long, name string"
# Each means something to a shell, a glob, a URI, Hadoop, HTML, Markdown, a terminal or SQL.
ODD = (
    *("*.json", "[ab].json", "{a,b}.json", "a,b.json", "a?.json", "back\\slash.json", "%2e%2e%2f.json", "a b.json"),
    *(" lead.json", "a:b.json", "#x.json", "a&b=c.json", "new\nline.json", "tab\there.json", 'it\'s "so".json'),
    *("<script>alert(1)<!script>.json", "[x](javascript:1).json", "\x1b[31mred.json", "[red]x.json", "$(id).json"),
    *("'; drop table x; --.json", "ünï☃️.json", "e\u0301.json", "\u202egnp.json", "…\u2028.json", "~.json", "-rf.json"),
    *("value=5.json", "x" * 250 + ".json", "a+b.json", "file:.json", "\u00a0.json", "..json", "a..b.json"),
)


def pipeline(**options: Any) -> FilePipeline:
    return FilePipeline(name="p", format="json", schema=SCHEMA, sink=PostgresTable("public.p"), **options)


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_names_are_data_for_both_readers(reader: Any, spark: Any, dsn: str, conn: Any, tmp_path: Path) -> None:
    """Each file is read once, as itself, also beside files that its name would match; folders make no columns. What
    Spark takes for hidden it would pass over in silence: that is set aside."""
    places = []
    for number, name in enumerate(ODD):
        folder = tmp_path / ("name=evil" if number % 3 == 0 else "value=evil" if number % 3 == 1 else "[a-z]*")
        folder.mkdir(exist_ok=True)
        place = folder / name
        place.write_bytes(b'{"id": %d, "name": "a"}\n' % number)
        places.append(place)
    sink = PostgresTable("public.odd")
    recipe = Recipe(format="json", schema=SCHEMA, reader=reader, roots=(str(tmp_path),))
    done = commit(spark, recipe, listed(*places), attempt(), sink, dsn)
    hidden = [reader == "spark" and place.name.startswith(".") for place in places]
    committed, set_aside = ("committed", None, 1), ("quarantined", "hidden", 0)
    found = [(f.state, f.reason, f.rows_in) for f in done.result.files]
    assert found == [set_aside if h else committed for h in hidden]
    rows = conn.execute("select id, name, _file from public.odd order by id").fetchall()
    assert rows == [(number, "a", str(place)) for number, place in enumerate(places) if not hidden[number]]


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_what_is_no_file_below_the_roots_is_set_aside_by_both_readers(
    reader: Any, spark: Any, dsn: str, conn: Any, tmp_path: Path
) -> None:
    root, secret = tmp_path / "landing", tmp_path / "landing-secrets"
    for folder in (root, secret):
        folder.mkdir()
    (secret / "key.json").write_bytes(ROW)
    (root / "good.json").write_bytes(ROW)
    (root / "inside.json").symlink_to(root / "good.json")
    (root / "link.json").symlink_to(secret / "key.json")
    (root / "folder").symlink_to(secret)
    (root / "round.json").symlink_to(root / "round.json")
    os.mkfifo(root / "pipe.json")
    (root / "device.json").symlink_to("/dev/zero")
    (root / "dir.json").mkdir()
    wanted = {
        "good.json": None,
        "inside.json": None,
        "link.json": "outside",
        "folder/key.json": "outside",
        "../landing-secrets/key.json": "outside",
        "../landing-secrets/no.json": "outside",
        "device.json": "outside",
        "pipe.json": "wrong_format",
        "dir.json": "wrong_format",
        "round.json": "missing",
        "x" * 300: "missing",
        "gone.json": "missing",
    }
    files = []
    for ordinal, name in enumerate(wanted):
        place = root / name
        try:
            now = place.stat()
            version, size = f"{now.st_size}-{now.st_mtime_ns}", now.st_size
        except OSError:
            version, size = "missing", 0
        files.append(BatchFile(ordinal, str(place), version, size))
    recipe = Recipe(format="json", schema=SCHEMA, reader=reader, roots=(str(root),))
    done = commit(spark, recipe, files, attempt(), PostgresTable("public.few"), dsn)
    assert [(name, f.reason) for name, f in zip(wanted, done.result.files, strict=True)] == list(wanted.items())
    assert conn.execute("select count(*) from public.few").fetchone() == (2,)


@pytest.mark.parametrize("reader", ["arrow", "spark"])
def test_a_device_is_not_read_where_there_are_no_roots_either(
    reader: Any, spark: Any, dsn: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    files = listed(tmp_path / "pipe.json", Path("/dev/zero"), Path("/dev/tty"))
    done = commit(
        spark, Recipe(format="json", schema=SCHEMA, reader=reader), files, attempt(), PostgresTable("public.n"), dsn
    )
    assert [f.reason for f in done.result.files] == ["wrong_format"] * 3


def test_roots_are_compared_by_parts_and_after_links(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (tmp_path / "alias").symlink_to(root)
    for path, inside in {
        str(root / "a"): True,
        str(root): True,
        f"file://{root}/a%20b": True,
        str(tmp_path / "alias" / "a"): True,
        f"{root}/../in/a": True,
        f"{root}/../out": False,
        f"file://{root}/%2e%2e/out": False,
        f"{root}x/a": False,
        "s3://bucket/in/a": False,
        "a\0b": False,
    }.items():
        assert is_inside(path, [str(root)]) == inside, path
    for path, inside in {
        "s3://bucket/in/a": True,
        "s3://bucket/inner/a": False,
        "s3://bucket/in/../out": False,
        "s3://bucket/in/%2e%2e/out": False,
        "s3://other/in/a": False,
        "s3://bucket@other/in/a": False,
        "/bucket/in/a": False,
    }.items():
        assert is_inside(path, ["s3://bucket/in"]) == inside, path


def test_a_submit_from_outside_the_roots_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.json").write_bytes(ROW)
    mine = pipeline(landing=inside)
    assert [Path(f.path).parent for f in landing.under(mine, [str(inside)])] == [inside]
    for path in (outside, outside / "a.json", inside / ".." / "out", "/etc/passwd", "s3://bucket/x"):
        with pytest.raises(InvalidInput, match="outside the folders that p may read"):
            list(landing.under(mine, [str(path)]))
    assert len(list(landing.under(pipeline(landing=inside, roots=[outside]), [str(outside)]))) == 1
    assert len(list(landing.under(pipeline(), [str(outside)]))) == 1
    with pytest.raises(ConfigurationError, match="roots"):
        pipeline(roots="/in")


def test_a_landing_folder_full_of_traps_is_listed_once_and_soon(tmp_path: Path) -> None:
    """Links that go round twice would be 2^40 folders; pipes and devices are no files; times may be absurd."""
    day = tmp_path / "day"
    day.mkdir()
    for name in (b"good.json", b"bad-\xff-name.json", b"late.json"):
        place = os.fsencode(day) + b"/" + name
        Path(os.fsdecode(place)).write_bytes(ROW)
        os.utime(place, (time.time() - 60,) * 2)
    os.utime(day / "late.json", (2**39, 2**39))
    for name in ("one", "two", "three"):
        (day / name).symlink_to(day)
    (day / "etc").symlink_to("/etc")
    os.mkfifo(day / "pipe.json")
    (day / "zero.json").symlink_to("/dev/zero")
    (day / "_SUCCESS").touch()
    os.utime(day / "_SUCCESS", (time.time() - 60,) * 2)
    (found,) = landing.page(pipeline(landing=tmp_path)).found
    names = sorted(Path(file.path).name for file in found.files)
    assert names == ["bad-\\xff-name.json", "good.json", "late.json"]
    for file in found.files:
        file.path.encode()  # the ledger can hold it


def test_a_manifest_that_is_a_bomb_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.json").write_bytes(ROW)
    (tmp_path / "deep.manifest").write_text("[" * 200_000)
    (tmp_path / "nul.manifest").write_text('["a\\u0000.json"]')
    (tmp_path / "up.manifest").write_text("../../../../etc/hostname\n")
    for number, odd in enumerate(
        ('[{"path": 5}]', '[{"path": null}]', "[[]]", "[1e999]", '[{"size": 1}]', "[NaN]", "{}")
    ):
        (tmp_path / f"odd{number}.manifest").write_text(odd)
    (tmp_path / "long.manifest").write_text("a.json\n" * (landing.MANIFEST_FILES + 1))
    with (tmp_path / "large.manifest").open("wb") as large:
        large.truncate(landing.MANIFEST_BYTES + 1)
    for place in tmp_path.iterdir():
        os.utime(place, (time.time() - 60,) * 2)
    found = landing.page(pipeline(landing=tmp_path, delivery="manifest")).found
    # What it names outside is handed on, for all to see, and set aside as `outside` by whoever would read it.
    assert [[file.path for file in one.files] for one in found] in ([], [["/etc/hostname"]])
    assert "large.manifest" in caplog.text
    assert "long.manifest" in caplog.text


def test_folders_deeper_than_python_recurses_are_listed(tmp_path: Path) -> None:
    deepest = tmp_path
    while len(str(deepest)) < 2500:
        deepest /= "d"
        deepest.mkdir()
    (deepest / "a.json").write_bytes(ROW)
    os.utime(deepest / "a.json", (time.time() - 60,) * 2)
    try:
        mine = pipeline(landing=tmp_path, delivery="quiet:1s")
        assert len(list(landing.under(mine, [str(tmp_path)]))) == 1
        assert [len(list(one.files)) for one in landing.page(mine).found] == [1]
        (tmp_path / "_SUCCESS").touch()
        os.utime(tmp_path / "_SUCCESS", (time.time() - 60,) * 2)
        assert [len(list(one.files)) for one in landing.page(pipeline(landing=tmp_path)).found] == [1]
    finally:
        (deepest / "a.json").unlink()
        while deepest != tmp_path:  # what clears up after tests recurses
            deepest.rmdir()
            deepest = deepest.parent


def test_hostile_files_end_in_the_ledger_as_they_are(conn: psycopg.Connection[Any], dsn: str) -> None:
    from pg_pipeline.coordination import submission
    from pg_pipeline.coordination.database import Database
    from pg_pipeline.coordination.types import FileVersion

    with Database(dsn) as db:
        submission.register_pipeline(db, "p")
        submission.submit(db, "p", [FileVersion(f"/in/{name}", "1", 1) for name in ODD], request_key="k")
        for path in ("", "a\0b", "x" * 4097):
            with pytest.raises((InvalidInput, psycopg.DataError)):
                submission.submit(db, "p", [FileVersion(path, "1", 1)], request_key="bad" + path[:1])
    rows = conn.execute("select path from pipeline.file order by batch, ordinal").fetchall()
    assert [path for (path,) in rows] == [f"/in/{name}" for name in ODD]
