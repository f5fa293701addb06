"""The crash tests through a real PgBouncer in transaction mode: a killed process leaves its session to the pooler."""

from collections.abc import Callable
from typing import Any

import pytest

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.crash.conftest import Receiver
from pg_pipeline_tests.crash.recovery import killed
from pg_pipeline_tests.crash.stories import BY_POINT, recover
from pg_pipeline_tests.crash.test_matrix import SAMPLE
from pg_pipeline_tests.helpers import ChildProcess

pytestmark = pytest.mark.system("pgbouncer")


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=() if p in SAMPLE else pytest.mark.long) for p in sorted(BY_POINT)]
)
def test_a_process_killed_behind_the_pooler_costs_nothing(
    brisk: Database,
    act: Callable[..., ChildProcess],
    receiver: Receiver,
    pooled: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    """Locks lie there, so who is dead is missed after the lease, which is a second."""
    monkeypatch.setenv("TEST_POOLED", "1")
    story = BY_POINT[point]
    given: dict[str, Any] = story.prepare(brisk, receiver.url)
    killed(act(story.verb, point, dsn=pooled(brisk.dsn), **given))
    recover(brisk, story, given)
    assert set(receiver.keys.values()) <= {1, 2}
    assert submission.submit(brisk, "orders", [], request_key="after").state == "finished"
