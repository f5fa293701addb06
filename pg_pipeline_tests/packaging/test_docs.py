"""Pages that are true: made from the program where they can be, with code that runs and links that lead somewhere."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination import dead_letters, executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.sinks.conformance import SinkConformance
from pg_pipeline_tests.coordination.conftest import HandWorker, files
from pg_pipeline_tests.e2e.test_demo import readme_commands
from pg_pipeline_tests.helpers import PROJECT, ChildProcess
from pg_pipeline_tests.packaging.pages import DOCS, NOT_RUN, PAGES, RUN, Block, blocks, blocks_of

BLOCKED, QUARANTINED, LETTER = "20261118-0001", "20261118-0002", "17"
BAD_FILE = "/data/orders/2026-11-18/o-17.json"
SOMEBODYS = "postgresql://user:password@host:5432/database"


def each(*languages: str) -> list[Any]:
    return [pytest.param(block.code, id=block.place) for block in blocks(*languages) if not block.is_dagsters]


def unrun(found: list[Block]) -> list[str]:
    return [block.place for block in found if block.language not in (*RUN, *NOT_RUN)]


def test_every_block_is_run_or_says_that_it_is_not() -> None:
    assert unrun(blocks()) == []
    text = "```bash\nls\n```\n\n- in a list\n\n  ```\n  ls\n  ```\n\ntext\n\n    indented\n\n```sh\nls\n```\n"
    assert unrun(list(blocks_of(text, "page"))) == ["page:1", "page:7", "page:13"]
    ran = [*each("python"), *each("sql"), *each("sh"), *(b for b in blocks("sh") if b.is_dagsters)]
    assert len(ran) == len(blocks(*RUN))


def test_dagsters_commands_are_those_that_the_demos_test_runs() -> None:
    lines = [line for block in blocks("sh") if block.is_dagsters for line in block.code.splitlines()]
    assert [shlex.split(line, comments=True)[1:] for line in lines] == readme_commands(BLOCKED)


def test_make_has_the_targets_that_the_pages_name(child: Callable[..., ChildProcess]) -> None:
    named = {name for page in PAGES for name in re.findall(r"(?:\$ |`)make ([a-z-]+)", page.read_text())}
    assert {"demo", "test", "site"} <= named
    asked = child(command=("make", "--dry-run", *sorted(named)), env={"MAKEFLAGS": None})
    assert asked.wait() == 0, asked.stderr


@pytest.mark.parametrize("name", ["cli.md", "sql.md"])
def test_the_reference_is_what_the_program_has(name: str) -> None:
    pages = runpy.run_path(str(DOCS / "reference.py"))["pages"]()
    assert (DOCS / name).read_text() == pages[name], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """On the site its build looks, too; README and CONTRIBUTING are not on it."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("code", each("python"))
def test_python_in_the_pages_runs(code: str, child: Callable[..., ChildProcess], tmp_path: Path) -> None:
    if "pytest_plugins" in code:
        (tmp_path / "test_page.py").write_text(code)
        strict = ("-W", "error::pytest.PytestAssertRewriteWarning")  # as of a user whose warnings are errors
        process = child(None, *strict, "test_page.py", module="pytest", cwd=tmp_path)
        assert (process.wait(600), "1 passed" in process.stdout) == (0, True), process.stdout
        return
    process = child(code, cwd=tmp_path, env={"PYTHONWARNINGS": "ignore"})
    assert process.wait() == 0, process.stderr


@pytest.mark.parametrize("code", each("sql"))
def test_sql_in_the_pages_runs(code: str, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select pipeline.register_pipeline('orders')")
    with conn.transaction(force_rollback=True):
        conn.execute(code.encode())


@pytest.fixture
def world(dsn: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What the pages speak of, and what it is called here: a blocked execution with its dead letter, a finished one
    with a quarantined file, and a delivery of the README's own pipeline."""
    (own,) = (block.code for block in blocks("python", pages=[PROJECT / "README.md"]))
    (tmp_path / "my_project.py").write_text(own)
    landed = tmp_path / "data" / "my_orders" / "2026-11-18"
    landed.mkdir(parents=True)
    (landed / "o-1.json").write_text('{"order_id": 1, "amount": 2.5, "country": "DE"}\n')
    program = tmp_path / "bin" / "pg-pipeline"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pg_pipeline "$@"\n')
    program.chmod(0o755)
    with Database(dsn) as db:
        submission.configure_queue(db, "default", backoff_base="0 s", backoff_cap="0 s", breaker_after=0)
        submission.register_pipeline(db, "orders", batch_files=2)
        hand = HandWorker(db)
        finished = submission.submit(db, "orders", [FileVersion(BAD_FILE, "1", 1)], request_key="finished").execution
        hand.finish(*hand.claim(1), result={"quarantined": [{"ordinal": 0, "reason": "corrupt"}]})
        hand.finish(*hand.claim(1), result={"summary": {}})
        blocked = submission.submit(db, "orders", files(2), request_key="blocked").execution
        while not (letters := dead_letters.listed(db)):
            hand.fail(*hand.claim(1))
        assert executions.get(db, blocked)["status"] == "blocked"
        db.rows("select pipeline.stop_worker(%s)", (hand.id,))
        yield {BLOCKED: blocked, QUARANTINED: finished, LETTER: str(letters[0]["id"]), SOMEBODYS: shlex.quote(dsn)}


@pytest.mark.parametrize("code", each("sh"))
def test_commands_in_the_pages_do_what_they_say(
    code: str, world: dict[str, str], child: Callable[..., ChildProcess], dsn: str, tmp_path: Path
) -> None:
    """The whole block, by a shell that stops at the first command that fails."""
    for name, here in world.items():
        code = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", lambda _: here, code)  # noqa: B023
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    env = {"PG_PIPELINE_DSN": dsn, "PATH": path, "DAGSTER_HOME": None, "PYTHONWARNINGS": "ignore"}
    shell = child(command=("sh", "-eu", "-c", code), env=env, cwd=tmp_path)
    assert shell.wait() == 0, shell.stdout + shell.stderr


class TestTheSinkOfThePage(SinkConformance):
    """docs/sinks.md shows a sink of one's own: it passes what every sink must pass."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Any:
        (code,) = (b.code for b in blocks("python", pages=[DOCS / "sinks.md"]) if "class Documents" in b.code)
        (tmp_path / "sink_of_the_page.py").write_text(code)
        return runpy.run_path(str(tmp_path / "sink_of_the_page.py"))["Documents"]()

    def visible_rows(self, _sink: Any, _spark: Any, conn: Any) -> list[tuple[int, str | None]]:
        kept = conn.execute("select rows from documents").fetchall()
        return [(row["id"], row.get("name")) for (rows,) in kept for row in rows]
