"""Every goal's module runs, at its tiniest and without peers; what it measures there means nothing."""

import pytest

from benchmarks.__main__ import GOALS, measure
from benchmarks.harness import Run
from pg_pipeline.embedded.server import EmbeddedServer

SPARK = 7  # starts a Spark session of its own
SLOW = {2, 3, 4, 6, 9}  # several seconds each: children, or a load of some time


@pytest.mark.parametrize(
    "goal", [pytest.param(goal, marks=[pytest.mark.long] * (goal in SLOW)) for goal in GOALS if goal != SPARK]
)
def test_a_goal_measures_ours_and_holds_it_against_its_bars(goal: int, server: EmbeddedServer) -> None:
    result = measure(goal, Run("tiny", rounds=1, peers=False, seed=7, embedded=server))
    assert result.goal == goal
    assert result.cases
    assert all(figure > 0 for case in result.cases for found in case.rounds for figure in found.values())
    assert result.checks
    assert {"fsync", "synchronous_commit"} <= set(result.about["postgres"])
