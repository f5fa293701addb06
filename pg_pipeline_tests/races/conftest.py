"""Sessions for two-party tests, on top of the coordination fixtures."""

from collections.abc import Callable, Iterator

import pytest

from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.coordination.conftest import db, submit, worker  # noqa: F401 - fixtures
from pg_pipeline_tests.races.sessions import Session


@pytest.fixture
def session(db: Database) -> Iterator[Callable[[], Session]]:  # noqa: F811
    """Opens sessions; whatever one still does at the end of the test is cancelled."""
    opened: list[Session] = []

    def make() -> Session:
        opened.append(Session(db.dsn))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
