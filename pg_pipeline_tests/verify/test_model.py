"""The protocol's model, in every order of steps: proved when whole, and broken when a guard is taken out of it."""

import re

import pytest

from pg_pipeline_tests.helpers import PROJECT
from pg_pipeline_tests.verify import check

by_name = {"ids": lambda one: one.name}


@pytest.mark.system("spin", "gcc")
@pytest.mark.parametrize("bounds", check.SAFE, **by_name)
def test_the_protocol_is_proved_within_small_bounds(bounds: check.Bounds) -> None:
    assert check.prove(bounds).error is None


@pytest.mark.system("spin", "gcc")
@pytest.mark.parametrize("variant", check.BROKEN, **by_name)
def test_without_a_guard_there_is_a_counterexample(variant: check.Broken) -> None:
    found = check.break_(variant)
    assert check.as_expected(variant, found), f"{variant.harm}: found {found.error}"


def test_every_guard_that_the_model_can_take_out_is_taken_out() -> None:
    taken = {variant.flag.removeprefix("-D") for variant in check.BROKEN}
    bounds = {"BATCHES", "JOBS", "GENERATIONS", "FAULTS", "OPERATORS", "WORKERS", "POLICY", "CANCEL", "REAPER"}
    assert set(re.findall(r"^#ifn?def (\w+)", check.MODEL.read_text(), re.MULTILINE)) - bounds == taken


def test_the_functions_that_the_model_names_are_there() -> None:
    named = re.findall(r"(\w+\.sql), (\w+)", check.MODEL.read_text())
    assert len(named) > 10
    for file, function in named:
        text = (PROJECT / "sql" / "functions" / file).read_text()
        assert f"function pipeline.{function}(" in text, f"{file} has no {function}"
