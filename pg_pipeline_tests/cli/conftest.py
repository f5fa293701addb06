"""The real program, against a database of the test's own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.coordination.conftest import HandWorker
from pg_pipeline_tests.helpers import ChildProcess

Program = Callable[..., ChildProcess]


@pytest.fixture
def program(child: Callable[..., ChildProcess], dsn: str) -> Program:
    """Run `pg-pipeline …` to its end; `code` is the exit code that it must have."""

    def run(*arguments: str, code: int = 0, **env: str) -> ChildProcess:
        process = child(None, *arguments, module="pg_pipeline", env={"PG_PIPELINE_DSN": dsn, **env}, cwd=Path.cwd())
        assert process.wait() == code, (process.stdout, process.stderr)
        if code in (0, 3):
            assert process.stderr == ""
        return process

    return run


@pytest.fixture
def landed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the pipeline orders may read, seen from where this test and its programs are."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "orders" / "day1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def asked(program: Program) -> Callable[..., Any]:
    """What `pg-pipeline … --json` answers."""
    return lambda *arguments, **options: json.loads(program(*arguments, "--json", **options).stdout)


@pytest.fixture
def db(dsn: str) -> Iterator[Database]:
    with Database(dsn) as database:
        submission.configure_queue(database, "default", backoff_base="0 s", backoff_cap="0 s", breaker_after=0)
        submission.register_pipeline(database, "orders", batch_files=2)
        yield database


@pytest.fixture
def hand(db: Database) -> HandWorker:
    return HandWorker(db)
