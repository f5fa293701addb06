"""`pg-pipeline submit`: the same files, versions and keys as the asset, asked by a person."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pg_pipeline.cli import shapes
from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.pipelines import landing
from pg_pipeline.pipelines.orders import orders
from pg_pipeline_tests.cli.conftest import Program


@pytest.fixture
def folder(landed: Path) -> Path:
    for number in range(3):
        (landed / f"o{number}.json").write_text('{"order_id": 1}\n')
    (landed / "notes.txt").touch()
    return landed


def test_p7_asking_twice_is_asking_once(program: Program, asked: Any, folder: Path, db: Database) -> None:
    dry = asked("submit", "orders", str(folder), str(folder / "o1.json"), "--dry-run")
    assert dry["counts"] == {"take": 3, "repeated": 1}
    assert executions.listed(db) == []

    first = asked("submit", "orders", str(folder), "--request-key", "k", "--tenant", "t", "--priority", "3")
    assert list(first) == list(shapes.SUBMISSION)
    assert (first["created"], first["taken"], first["state"]) == (True, 3, "sealed")
    (row,) = executions.listed(db)
    assert (row["tenant"], row["priority"], row["request_key"]) == ("t", 3, "k")
    versions = {file.path: file.version for file in landing.under(orders, [str(folder)])}
    ledger = db.rows("select path, version from pipeline.file")
    assert {file["path"]: file["version"] for file in ledger} == versions, "the asset lists the same"

    for path in folder.iterdir():
        path.unlink()
    again = asked("submit", "orders", str(folder), "--request-key", "k", "--tenant", "t", "--priority", "3")
    assert again == first | {"created": False}, "the key is looked up before anything is listed"
    conflict = program("submit", "orders", str(folder), "--request-key", "k", code=1)
    assert "was used for another request" in conflict.stderr
    assert len(conflict.stderr.splitlines()) == 1


def test_p2_known_files_are_left_out_and_named(program: Program, asked: Any, folder: Path) -> None:
    first = asked("submit", "orders", str(folder / "o0.json"))
    second = asked("submit", "orders", str(folder))
    assert (second["taken"], second["left_out"]) == (2, {"known": 1})
    dry = program("submit", "orders", str(folder), "--dry-run").stdout
    assert f"known    {folder}/o0.json (execution {first['execution']})" in dry
    assert "A submit would take 0 files; left out: 3 known." in dry


def test_open_add_seal_and_released(asked: Any, program: Program, folder: Path, db: Database) -> None:
    opened = asked("submit", "orders", str(folder / "o0.json"), "--open")
    key = opened["execution"]
    assert opened["state"] == "open"
    assert asked("submit", "orders", str(folder), "--add", key)["taken"] == 3
    assert asked("submit", "orders", "--add", key, "--seal")["state"] == "sealed"
    program("cancel", key, "--reason", "a test", "--yes")
    assert asked("submit", "orders", str(folder))["left_out"] == {"released": 3}
    assert asked("submit", "orders", str(folder), "--released")["taken"] == 3


def test_wrong_submissions_say_why_and_change_nothing(program: Program, folder: Path, db: Database) -> None:
    submission.register_pipeline(db, "others")
    other = submission.submit(db, "others", [], request_key="k", seal=False).execution
    for arguments, code, text in (
        (("orders", "/no/such/file"), 1, "There is no file or folder /no/such/file"),
        (("nothing", str(folder)), 1, "Pipeline nothing not found among orders, web_events"),
        (("orders", str(folder), "--add", other), 1, "is of pipeline others, not orders"),
        (("orders", str(folder), "--seal"), 2, "--seal goes with --add"),
        (("orders",), 2, "name at least one file"),
    ):
        shown = program("submit", *arguments, code=code)
        assert text in shown.stderr
        assert len(shown.stderr.splitlines()) == 1
    assert [row["execution"] for row in executions.listed(db)] == [other]


def test_ones_own_pipelines_are_found_by_module(child: Any, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "recipes_of_mine.py").write_text(
        "from pg_pipeline.pipelines import FilePipeline\n"
        "from pg_pipeline.sinks.parquet import ParquetDataset\n"
        "mine = FilePipeline(name='mine', format='csv', schema='a long', sink=ParquetDataset('/tmp/mine'))\n"
    )
    (tmp_path / "a.csv").write_text("1\n")
    env = {"PG_PIPELINE_DSN": dsn, "PG_PIPELINE_PIPELINES": "recipes_of_mine"}
    command = (sys.executable, "-m", "pg_pipeline", "submit", "mine", "a.csv")
    process = child(command=command, env=env, cwd=tmp_path)
    assert process.wait() == 0, process.stderr
    assert "is sealed: 1 files in 1 batches." in process.stdout
