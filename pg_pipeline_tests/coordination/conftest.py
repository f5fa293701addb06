"""What the coordination tests share: a database with a pipeline, files, and workers that stop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

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


class HandWorker:
    """A worker without a thread: each step is the test's own, and so is its death."""

    def __init__(self, db: Database, queue: str = "default", **declared: Any) -> None:
        self.db = db
        self.id = uuid4()
        db.rows(
            "select pipeline.register_worker(%s, %s, %s, %s, %s, %s, false)",
            (self.id, queue, "hand", declared.get("pipelines"), declared.get("kinds"), declared.get("run_id")),
        )

    def claim(self, limit: int = 1, claim_id: UUID | None = None, after: str = "") -> list[dict[str, Any]]:
        return self.db.rows(
            "select * from pipeline.claim(%s, %s, %s, %s)", (self.id, claim_id or uuid4(), limit, after)
        )

    def finish(self, *leases: dict[str, Any], result: Any = None) -> list[dict[str, Any]]:
        return self.db.rows(
            "select * from pipeline.finish(%s, %s, %s)",
            ([x["task_id"] for x in leases], [x["token"] for x in leases], [Jsonb(result or {})] * len(leases)),
        )

    def fail(self, lease: dict[str, Any], retryable: bool = True, error: str = "boom") -> dict[str, Any]:
        answer: dict[str, Any] = self.db.value(
            "select pipeline.fail(%s, %s, 'Boom', %s, %s)", (lease["task_id"], lease["token"], error, retryable)
        )
        return answer

    def release(self, lease: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self.db.value("select pipeline.release(%s, %s)", (lease["task_id"], lease["token"]))
        return answer

    def beat(self, *leases: dict[str, Any], pending: Sequence[UUID] = ()) -> dict[str, Any]:
        answer: dict[str, Any] = self.db.value(
            "select pipeline.beat(%s, %s, %s, %s)",
            (self.id, [x["task_id"] for x in leases], [x["token"] for x in leases], list(pending)),
        )
        return answer

    def die(self) -> None:
        """Its last beat is long ago; the server's start too, or expiry would count from there."""
        self.db.rows(
            "update pipeline.worker set beat_at = beat_at - interval '1 day', lease = '1 ms' where id = %s returning 1",
            (self.id,),
        )
        self.db.rows("update pipeline.boot set seen_at = seen_at - interval '1 day' returning 1")


@pytest.fixture
def hand(db: Database) -> Callable[..., HandWorker]:
    return lambda **declared: HandWorker(db, **declared)


def state(db: Database, execution: str) -> dict[str, Any]:
    (row,) = db.rows("select * from pipeline.execution_status where execution = %s", (execution,))
    return row
