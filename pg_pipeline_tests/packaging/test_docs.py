"""Pages that are true: made from the program where they can be, with code that runs and links that lead somewhere."""

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.main import get_command

from pg_pipeline.cli.main import COMMANDS, app
from pg_pipeline_tests.helpers import PROJECT, ChildProcess

DOCS = PROJECT / "docs"
PAGES = sorted([PROJECT / "README.md", *DOCS.glob("*.md")])


def blocks(language: str) -> Iterator[Any]:
    """Every code block of a language, with its page and line as the test's name."""
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text[: found.start()].count("\n") + 1
            yield pytest.param(found[1], id=f"{page.relative_to(PROJECT)}:{line}")


@pytest.mark.parametrize("name", ["cli.md", "sql.md"])
def test_the_reference_is_what_the_program_has(name: str) -> None:
    pages = runpy.run_path(str(DOCS / "reference.py"))["pages"]()
    assert (DOCS / name).read_text() == pages[name], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_in_the_pages_runs(code: str, child: Callable[..., ChildProcess], tmp_path: Path) -> None:
    process = child(code, cwd=tmp_path, env={"PYTHONWARNINGS": "ignore"})
    assert process.wait() == 0, process.stderr


@pytest.mark.parametrize("code", list(blocks("sql")))
def test_sql_in_the_pages_runs(code: str, conn: psycopg.Connection[Any]) -> None:
    conn.execute("select pipeline.register_pipeline('orders')")
    with conn.transaction(force_rollback=True):
        conn.execute(code.encode())


@pytest.mark.parametrize("code", list(blocks("sh")))
def test_commands_in_the_pages_are_as_the_program_takes_them(code: str) -> None:
    """Parsed by the program itself, not run: they name executions that are not there."""
    group = get_command(app)
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] != "pg-pipeline":
            continue
        assert words[1].startswith("--") or words[1] in COMMANDS, line
        context = group.make_context("pg-pipeline", words[1:])
        command: Any = group
        while hasattr(command, "get_command"):
            name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            context = found.make_context(name, rest, parent=context)
            command = found
