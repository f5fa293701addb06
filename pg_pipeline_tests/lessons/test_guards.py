"""Tests that pass for the wrong reason: each guard is taken out of a copy of the code, and its test must fail."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pg_pipeline_tests.helpers import PROJECT, ChildProcess
from pg_pipeline_tests.lessons.guards import GUARDS, Guard


def without(guard: Guard, folder: Path) -> None:
    for name in ("pg_pipeline", "pg_pipeline_tests", "sql"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.cfg"):
        shutil.copy(PROJECT / name, folder / name)
    for name, guarded, bare in guard.cuts:
        path = folder / name
        text = path.read_text()
        assert text.count(guarded) == 1, f"{name} does not have {guarded!r} once: name the guard as it is now"
        path.write_text(text.replace(guarded, bare))


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_lesson_d9_every_guard_stands_where_it_is_said_to(guard: Guard, tmp_path: Path) -> None:
    """So that the long test below can take it out."""
    for name, guarded, _ in guard.cuts:
        assert (PROJECT / name).read_text().count(guarded) == 1, f"{name} does not have {guarded!r} once"
    path, _, test = guard.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (PROJECT / path).read_text()


@pytest.mark.long
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_lesson_d9_without_its_guard_the_test_is_red(
    guard: Guard, tmp_path: Path, child: Callable[..., ChildProcess]
) -> None:
    without(guard, tmp_path)
    run = child(
        None,
        *("-q", "-x", "-p", "no:cacheprovider", guard.test),
        module="pytest",
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert run.wait(300) == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert f"FAILED {guard.test}" in run.stdout, f"the code without the guard does not even run: {run.stdout}"
