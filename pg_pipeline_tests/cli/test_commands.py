"""The command line as a person meets it: a real process, its output and its exit code."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pg_pipeline
from pg_pipeline.cli import shapes
from pg_pipeline.cli.main import COMMANDS
from pg_pipeline_tests.helpers import ChildProcess

Run = Callable[..., ChildProcess]


@pytest.fixture
def run(child: Callable[..., ChildProcess]) -> Run:
    """Run `pg-pipeline …` to its end."""

    def start(*arguments: str, **env: str) -> ChildProcess:
        process = child(None, *arguments, module="pg_pipeline", env=env)
        process.wait()
        return process

    return start


def test_help_names_every_command(run: Run) -> None:
    shown = run("--help")
    assert shown.process.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in shown.stdout


def test_version(run: Run) -> None:
    assert run("--version").stdout.startswith(f"pg-pipeline {pg_pipeline.__version__} (Python 3.")


def test_wrong_usage_exits_with_2(run: Run) -> None:
    shown = run("migrate", "--no-such-option")
    assert shown.process.returncode == 2
    assert "--no-such-option" in shown.stderr


def test_migrate_and_its_check(run: Run, empty_dsn: str) -> None:
    before = run("migrate", "--check", PG_PIPELINE_DSN=empty_dsn)
    assert before.process.returncode == 3
    assert "0001_roles" in before.stdout
    done = run("migrate", PG_PIPELINE_DSN=empty_dsn)
    assert done.process.returncode == 0
    assert "0001_roles" in done.stdout
    after = run("migrate", "--check", PG_PIPELINE_DSN=empty_dsn)
    assert after.process.returncode == 0
    assert "nothing to do" in run("migrate", PG_PIPELINE_DSN=empty_dsn).stdout


def test_doctor_finds_nothing_wrong_with_a_good_set_up(run: Run, dsn: str) -> None:
    shown = run("doctor", PG_PIPELINE_DSN=dsn)
    assert shown.process.returncode == 0, shown.stdout
    for thing in (
        "Python",
        "pyspark",
        "Data folder",
        "Postgres",
        "Clock",
        "Durability",
        "Dagster storage",
        "Schema",
        "Java",
        "Spark",
    ):
        assert re.search(rf"^ok +{thing} ", shown.stdout, re.MULTILINE)
    assert "0 problems found." in shown.stdout


def test_doctor_answers_in_json(run: Run, dsn: str) -> None:
    shown = run("doctor", "--json", PG_PIPELINE_DSN=dsn, PG_PIPELINE_DNS="typo", DAGSTER_HOME="/nowhere")
    assert shown.process.returncode == 3
    findings = json.loads(shown.stdout)
    assert {tuple(one) for one in findings} == {tuple(shapes.FINDING)}
    assert [one["found"] for one in findings if one["fix"]] == [
        "PG_PIPELINE_DNS is set and means nothing",
        "yours, /nowhere, without a dagster.yaml",
    ]


def test_doctor_says_how_to_mend_each_problem_and_exits_with_3(run: Run, empty_dsn: str, tmp_path: Path) -> None:
    shown = run("doctor", PG_PIPELINE_DSN=empty_dsn, JAVA_HOME=str(tmp_path), PG_PIPELINE_DNS="typo")
    assert shown.process.returncode == 3
    for text in ("→ pg-pipeline migrate", f"JAVA_HOME is {tmp_path}", "PG_PIPELINE_DNS is set and means nothing"):
        assert text in shown.stdout
    assert "3 problems found." in shown.stdout


def test_output_that_is_no_terminal_has_no_colours(run: Run, dsn: str) -> None:
    assert "\x1b" not in run("doctor", PG_PIPELINE_DSN=dsn, TERM="xterm-256color").stdout
