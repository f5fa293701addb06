"""P2 as a property: any split into batches, any order, any crash of an attempt gives the rows of one plain job."""

import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_pipeline.coordination import executions, partitions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Lease
from pg_pipeline.coordination.types import BatchFile, FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost
from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline.spark.process import Processed, process_batch
from pg_pipeline.spark.recipe import Recipe
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.spark.landing import land

NAMES = [f"{n}.json" for n in range(7)]
CONTENT: dict[str, Any] = {
    name: [{"id": n * 100 + i, "name": f"ü{i}"} for i in range(n + 1)] for n, name in enumerate(NAMES)
}
CONTENT["3.json"] = b'{"id": 300}\n{oops\n'
CONTENT["5.json"] = b""
GOOD = [name for name in NAMES if name not in ("3.json", "5.json")]
# How an attempt ends before the one that commits: its worker dies with nothing done, or with everything staged; its
# finish is rolled back; it fails and discards; or it is thought dead, and comes back when another has its batch.
ENDS = ["dies_at_once", "dies_staged", "rolls_back", "discards", "comes_back_late"]


@pytest.fixture(scope="module")
def landing() -> Any:
    folder = Path(tempfile.mkdtemp(prefix="pgp-once-"))
    yield land(folder, CONTENT)
    shutil.rmtree(folder)


def plans() -> Any:
    """The order of the files, how many make a batch, the reader, and how attempts end before one commits."""
    return st.tuples(
        st.permutations(range(len(NAMES))),
        st.integers(1, 4),
        st.sampled_from(["auto", "spark"]),
        st.lists(st.sampled_from([*ENDS, "commits"]), max_size=6),
    )


class World:
    """One execution, and workers that come and go."""

    def __init__(self, spark: Any, dsn: str, db: Database, sink: Any, plan: Any, landing: list[BatchFile]) -> None:
        order, size, reader, ends = plan
        self.spark, self.dsn, self.sink, self.ends = spark, dsn, sink, list(ends)
        self.recipe = Recipe("json", "id long, name string", reader=reader)
        self.db = db
        self.name = f"p{uuid.uuid4().hex[:12]}"
        quick = {"grace": "100 ms", "backoff_base": "0 s", "backoff_cap": "0 s", "max_attempts": 50, "breaker_after": 0}
        submission.configure_queue(self.db, self.name, **quick)
        submission.register_pipeline(self.db, self.name, queue=self.name, batch_files=size)
        files = [FileVersion(landing[n].path, landing[n].version, landing[n].size) for n in order]
        self.execution = submission.submit(self.db, self.name, files, request_key="once").execution
        self.worker = self._worker()
        self.late: list[tuple[Worker, Lease, Processed]] = []

    def _worker(self) -> Worker:
        return Worker(self.db, self.name, kinds=["batch"], heartbeat_interval=0.02)

    def run(self) -> None:
        while partitions.execution(self.db, self.execution).remaining:
            for lease in self.worker.claim(1):
                getattr(self, self.ends.pop() if self.ends else "commits")(lease)
        for worker, lease, done in self.late:
            with pytest.raises(LeaseLost):
                self._finish(worker, lease, done)
        self.worker.stop()

    def _process(self, lease: Lease) -> Processed:
        files = self.worker.files(lease)
        self.worker.note_output(lease, self.sink.name, self.sink.location(lease.ref))
        return process_batch(self.spark, self.recipe, files, lease.ref, self.sink, self.dsn)

    def _finish(self, worker: Worker, lease: Lease, done: Processed) -> None:
        worker.finish(lease, done.result, lambda conn: self.sink.publish(conn, done.staged, lease.ref))

    def commits(self, lease: Lease) -> None:
        done = self._process(lease)
        self._finish(self.worker, lease, done)
        self._finish(self.worker, lease, done)  # the answer was lost, and is asked for again

    def dies_at_once(self, lease: Lease) -> None:
        self.worker._heartbeat.stop()
        self.worker = self._worker()
        wait_until(lambda: not self._held(lease), what="the dead worker's batch to come free")

    def _held(self, lease: Lease) -> Any:
        return any(place.live for place in partitions.places(self.db, self.execution, [lease.batch or 0]))

    def dies_staged(self, lease: Lease) -> None:
        self._process(lease)
        self.dies_at_once(lease)

    def comes_back_late(self, lease: Lease) -> None:
        self.late.append((self.worker, lease, self._process(lease)))
        self.dies_at_once(lease)

    def rolls_back(self, lease: Lease) -> None:
        done = self._process(lease)

        def publish(conn: Any) -> None:
            self.sink.publish(conn, done.staged, lease.ref)
            raise OSError("after the rows, before the commit")

        with pytest.raises(OSError, match="after the rows"):
            self.worker.finish(lease, done.result, publish)
        self.worker.fail(lease, "rolled back")

    def discards(self, lease: Lease) -> None:
        self._process(lease)
        with psycopg.connect(self.dsn) as conn:
            self.sink.discard(conn, lease.ref)
        self.worker.fail(lease, "discarded")


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pgp-once-"))
    yield made
    shutil.rmtree(made)


def holds(spark: Any, dsn: str, folder: Path, landing: list[BatchFile], kind: str, plan: Any) -> None:
    target = f"t{uuid.uuid4().hex}"
    sink: Any = (
        ParquetDataset(str(folder / target))
        if kind == "parquet"
        else PostgresTable(target, inline_bytes=0 if kind == "executors" else 1 << 20)
    )
    with Database(dsn) as db:
        world = World(spark, dsn, db, sink, plan, landing)
        world.run()
        assert partitions.execution(db, world.execution).quarantined == len(NAMES) - len(GOOD)
        assert executions.audit(db) == []
    paths = [landing[NAMES.index(name)].path for name in GOOD]
    plain = spark.read.schema("id long, name string").json(paths).collect()
    with psycopg.connect(dsn) as conn:
        if kind == "parquet":
            seen = [(row.id, row.name) for row in sink.read(spark, conn).collect()]
        else:
            seen = conn.execute(
                psycopg.sql.SQL("select id, name from {}").format(psycopg.sql.Identifier(target))
            ).fetchall()
    assert Counter(seen) == Counter((row.id, row.name) for row in plain)


OPTIONS: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("kind", ["driver", "executors", "parquet"])
@settings(max_examples=3, derandomize=True, **OPTIONS)
@given(plan=plans())
def test_any_split_order_and_crash_gives_the_rows_of_one_plain_job(
    spark: Any, dsn: str, folder: Path, landing: list[BatchFile], kind: str, plan: Any
) -> None:
    holds(spark, dsn, folder, landing, kind, plan)


@pytest.mark.parametrize("end", ENDS)
def test_each_way_for_an_attempt_to_end_leaves_the_rows_of_one_plain_job(
    spark: Any, dsn: str, folder: Path, landing: list[BatchFile], end: str
) -> None:
    holds(spark, dsn, folder, landing, "executors", (range(len(NAMES)), 4, "auto", [end, end]))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["driver", "executors", "parquet"])
@settings(max_examples=40, **OPTIONS)
@given(plan=plans())
def test_many_splits_orders_and_crashes_give_the_rows_of_one_plain_job(
    spark: Any, dsn: str, folder: Path, landing: list[BatchFile], kind: str, plan: Any
) -> None:
    holds(spark, dsn, folder, landing, kind, plan)
