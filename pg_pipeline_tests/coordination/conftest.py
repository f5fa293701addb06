"""What the coordination tests share: a database with a pipeline, files, and workers that stop."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker


@pytest.fixture
def db(dsn: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """Every test ends with a clean audit, but for those that plant violations."""
    with Database(dsn) as database:
        submission.configure_queue(database, "default", backoff_base="0 s", backoff_cap="0 s", breaker_after=0)
        submission.register_pipeline(database, "orders", batch_files=2)
        yield database
        if "plants_violations" not in request.keywords:
            assert audit(database) == []


@pytest.fixture
def worker(db: Database) -> Iterator[Callable[..., Worker]]:
    """Makes workers; those that a test left running are stopped."""
    made: list[Worker] = []

    def make(**options: Any) -> Worker:
        made.append(Worker(db, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def submit(db: Database) -> Callable[..., str]:
    """Submits `count` new files; gives the execution's key."""

    def make(count: int = 4, key: str = "k", **options: Any) -> str:
        wanted = files(count, prefix=key)
        return submission.submit(db, options.pop("pipeline", "orders"), wanted, request_key=key, **options).execution

    return make


def files(count: int, prefix: str = "f", size: int = 10) -> list[FileVersion]:
    return [FileVersion(f"/in/{prefix}/{number:05}.json", "1", size) for number in range(count)]


def audit(db: Database) -> list[dict[str, Any]]:
    return db.rows("select * from pipeline.audit()")
