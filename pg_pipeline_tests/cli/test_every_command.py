"""No command without a test that runs it, no reading command without --json, and completion that knows them all."""

import ast
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pg_pipeline.cli import shapes
from pg_pipeline.cli.main import COMMANDS, app
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.helpers import PROJECT, ChildProcess

TESTS = PROJECT / "pg_pipeline_tests"
# They act, and say in a sentence what they did.
ACTING = ("demo", "up", "report", "cancel", "dlq discard", "queue pause", "queue resume", "serve")


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with the words that name it."""
    group = group or get_command(app)
    context = group.context_class(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def words_run(source: str) -> Iterator[tuple[str, ...]]:
    """What tests hand to the real program: the texts that begin a call of its fixtures, or follow "pg_pipeline"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            starts_it = any(k.arg == "module" and _text(k.value) == "pg_pipeline" for k in node.keywords)
            if node.func.id in ("program", "asked", "run") or starts_it:
                yield tuple(_leading(node.args[1:] if starts_it else node.args))
        elif isinstance(node, ast.Tuple) and "pg_pipeline" in (texts := [_text(one) for one in node.elts]):
            yield tuple(_leading(node.elts[texts.index("pg_pipeline") + 1 :]))


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _leading(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if (text := _text(node)) is None:
            return
        yield text


def untested(names: list[str], ran: set[tuple[str, ...]]) -> list[str]:
    return [name for name in names if not any(words[: name.count(" ") + 1] == tuple(name.split()) for words in ran)]


def test_every_command_has_a_test_that_runs_the_real_program() -> None:
    sources = [path.read_text() for room in ("cli", "e2e") for path in sorted((TESTS / room).glob("*.py"))]
    ran = {words for source in sources for words in words_run(source)}
    names = [name for name, _ in commands()]
    assert len(names) >= 25
    assert untested(names, ran) == []
    assert untested(["queue drain", "audit"], ran) == ["queue drain"], "and it would be found"


def test_every_reading_command_takes_json_of_a_documented_shape() -> None:
    answering = {name for name, command in commands() if any("--json" in one.opts for one in command.params)}
    assert answering == {name for name, _ in commands()} - set(ACTING)
    assert {name.partition(" --")[0] for name in shapes.BY_COMMAND} == answering


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(child: Callable[..., ChildProcess], shell: str) -> None:
    for typed, expected in (
        ("pg-pipeline ", list(COMMANDS)),
        ("pg-pipeline dlq re", ["replay"]),
        ("pg-pipeline rerun --s", ["--since"]),
    ):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        env = {**words, "_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        asked = child(None, module="pg_pipeline", env={**env, "_PG_PIPELINE_COMPLETE": f"complete_{shell}"})
        assert asked.wait() == 0, asked.stderr
        offered = [line.split("\t")[0] for line in asked.stdout.splitlines()]
        if shell == "zsh":  # _arguments '*: :(("name":"help" …))'
            offered = [line.partition('"')[2].partition('"')[0] for line in asked.stdout.splitlines()]
        assert offered == expected


def test_a_real_shell_completes(child: Callable[..., ChildProcess], tmp_path: Path) -> None:
    """bash loads what --show-completion prints, and asks the program through it."""
    program = tmp_path / "pg-pipeline"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pg_pipeline "$@"\n')
    program.chmod(0o755)
    script = f"""
        set -eu
        PATH={tmp_path}:$PATH
        eval "$(pg-pipeline --show-completion bash)"
        complete -p pg-pipeline > /dev/null
        COMP_WORDS=(pg-pipeline quarantine s) COMP_CWORD=2
        _pg_pipeline_completion pg-pipeline
        echo "offered: ${{COMPREPLY[*]}}"
    """
    shell = child(command=("bash", "-c", script))
    assert shell.wait() == 0, shell.stderr
    assert shell.stdout == "offered: show\n"


def test_migrate_answers_in_json(asked: Any, program: Program, empty_dsn: str) -> None:
    before = asked("migrate", "--check", code=3, PG_PIPELINE_DSN=empty_dsn)
    assert list(before) == list(shapes.MIGRATED)
    assert (before["current"], before["applied"]) == (False, [])
    after = asked("migrate", PG_PIPELINE_DSN=empty_dsn)
    assert after == {"current": True, "applied": before["pending"], "pending": []}
    assert asked("migrate", "--check", PG_PIPELINE_DSN=empty_dsn)["current"] is True


def test_metrics_answer_in_json(asked: Any) -> None:
    found = asked("metrics")
    assert {tuple(one) for one in found} == {tuple(shapes.SAMPLE)}
    assert {"name": "outbox", "labels": {"state": "dead"}, "value": 0} in found


# Each command as one would type it, and its exit code while Postgres is away.
AWAY: dict[str, tuple[str, int]] = {
    "demo": ("--files 20 --rows 1", 1),
    "up": ("", 1),
    "submit": ("orders README.md", 1),
    "receive": ("orders README.md", 1),
    "status": ("", 1),
    "executions": ("", 1),
    "explain": ("20261118-0001", 1),
    "attempts": ("20261118-0001", 1),
    "audit": ("", 1),
    "report": ("20261118-0001", 1),
    "rerun": ("20261118-0001 --yes", 1),
    "cancel": ("20261118-0001 --reason no --yes", 1),
    "dlq list": ("", 1),
    "dlq show": ("1", 1),
    "dlq replay": ("1", 1),
    "dlq discard": ("1 --why no --yes", 1),
    "quarantine list": ("", 1),
    "quarantine show": ("20261118-0001 /in/a", 1),
    "quarantine replay": ("20261118-0001 --yes", 1),
    "queue list": ("", 1),
    "queue pause": ("default --reason no", 1),
    "queue resume": ("default", 1),
    "reap": ("", 1),
    "health": ("", 3),
    "metrics": ("", 0),  # pg_pipeline_up is 0, and that is the answer
    "migrate": ("", 1),
    "doctor": ("", 3),
}


def test_the_table_of_commands_is_whole() -> None:
    assert set(AWAY) == {name for name, _ in commands()} - {"serve"}, "which waits for Postgres: see test_serve.py"


@pytest.mark.parametrize("name", AWAY)
def test_an_error_is_one_sentence_and_its_exit_code(
    child: Callable[..., ChildProcess], name: str, tmp_path: Path
) -> None:
    arguments, code = AWAY[name]
    env = {"PG_PIPELINE_DSN": "postgresql://127.0.0.1:1/away", "PG_PIPELINE_STATE_DIR": str(tmp_path)}
    process = child(None, *name.split(), *arguments.split(), module="pg_pipeline", env=env)
    assert process.wait() == code, process.stderr
    if code != 1:
        assert process.stderr == ""
        return
    (sentence,) = process.stderr.splitlines()
    assert re.fullmatch(r"Error: Postgres cannot be reached at .*\.", sentence)


def test_completion_installs_itself_where_the_shell_finds_it(
    child: Callable[..., ChildProcess], tmp_path: Path
) -> None:
    install = f"{shlex.quote(sys.executable)} -m pg_pipeline --install-completion; exit $?"  # asked from bash, for bash
    installed = child(command=("bash", "--norc", "-c", install), env={"HOME": str(tmp_path)})
    assert installed.wait() == 0, installed.stdout + installed.stderr
    script = "source ~/.bashrc; complete -p pg-pipeline"
    shell = child(command=("bash", "--norc", "-c", script), env={"HOME": str(tmp_path)})
    assert shell.wait() == 0, shell.stderr
    assert "_pg_pipeline_completion" in shell.stdout
