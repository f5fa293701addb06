"""Through a real PgBouncer in transaction mode: no call depends on a session."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pg_pipeline.coordination import dead_letters, executions, submission
from pg_pipeline.coordination.database import Connection, Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost
from pg_pipeline_tests.coordination.conftest import HandWorker, files, state
from pg_pipeline_tests.helpers import wait_until

pytestmark = pytest.mark.system("pgbouncer")


@pytest.fixture
def through(db: Database, dsn: str, pooled: Callable[[str], str]) -> Iterator[Database]:
    with Database(pooled(dsn)) as database:
        yield database


def test_a_delivery_goes_through_the_pooler_with_many_workers(db: Database, through: Database) -> None:
    with db.connect() as conn:
        conn.execute("create table public.sink (batch int)")
    execution = submission.submit(through, "orders", files(200), request_key="k").execution

    def publish(batch: int | None) -> Callable[[Connection], None]:
        def insert(conn: Connection) -> None:
            conn.execute("insert into public.sink values (%s)", (batch,))

        return insert

    def work(_: int) -> None:
        with Worker(through, pooled=True, heartbeat_interval=0.1) as one:
            while leases := one.claim(3):
                for lease in leases:
                    one.finish(lease, {}, publish(lease.batch) if lease.kind == "batch" else None)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    work(0)  # the callback may have come after the last one looked
    assert state(db, execution)["status"] == "finished"
    assert db.value("select count(*) = 100 and count(distinct batch) = 100 from public.sink")


def test_behind_the_pooler_a_worker_that_beats_keeps_its_lease_and_a_silent_one_loses_it(
    db: Database, through: Database
) -> None:
    submission.configure_queue(through, "default", lease="1 s", grace="100 ms")
    submission.submit(through, "orders", files(2), request_key="k")
    heir = HandWorker(through)
    with Worker(through, pooled=True, heartbeat_interval=0.1) as living:
        (lease,) = living.claim()
        before = living.last_beat
        wait_until(lambda: living.last_beat > before + 1.5, what="beats for longer than the lease")
        heir.beat()
        assert heir.claim() == []
        living._heartbeat._stop.set()
        (taken,) = wait_until(lambda: heir.beat() and heir.claim(), what="the silent worker's task")
        assert taken["attempt"] == 2
        with pytest.raises(LeaseLost):
            living.finish(lease)


def test_operators_verbs_pass_the_pooler(db: Database, through: Database) -> None:
    execution = submission.submit(through, "orders", files(4), request_key="k").execution
    one = HandWorker(through)
    first, second = one.claim(2)
    letter: Any = one.fail(first, retryable=False)["dead_letter"]
    dead_letters.replay(through, letter)
    one.finish(second, *one.claim())
    one.finish(*one.claim())
    assert executions.rerun(through, execution)["generation"] == 2
    executions.cancel(through, execution, "done")
    assert executions.audit(through) == []
