"""Every failpoint: a real process is killed there (kill -9), and nothing is lost, doubled or told twice."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.crash.conftest import Receiver
from pg_pipeline_tests.crash.recovery import killed
from pg_pipeline_tests.crash.stories import BY_POINT, ELSEWHERE, points_in_source, recover
from pg_pipeline_tests.helpers import ChildProcess

SEED = 20260
SAMPLE = sorted(random.Random(SEED).sample(sorted(BY_POINT), 8))


def test_every_failpoint_has_a_story(db: Database) -> None:
    told = {point.partition(":")[0] for point in BY_POINT} | ELSEWHERE
    assert told == points_in_source(db)


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=() if p in SAMPLE else pytest.mark.long) for p in sorted(BY_POINT)]
)
def test_a_process_killed_here_costs_nothing(
    brisk: Database, act: Callable[..., ChildProcess], receiver: Receiver, point: str
) -> None:
    story = BY_POINT[point]
    given: dict[str, Any] = story.prepare(brisk, receiver.url)
    killed(act(story.verb, point, **given))
    recover(brisk, story, given)
    assert set(receiver.keys.values()) <= {1, 2}
