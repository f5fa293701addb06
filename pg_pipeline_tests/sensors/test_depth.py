"""Queue depth: as many worker runs as there is work for, never a storm, never silence."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import pytest

from pg_pipeline.assets.process import DEAD_TAG, QUEUE_TAG, WORKER_TAG
from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.testing import PipelineBench

Tick = Callable[..., Any]


@pytest.fixture
def orders(make_orders: Callable[..., FilePipeline]) -> FilePipeline:
    return make_orders(batch_files=1)


@pytest.fixture
def tick(bench: PipelineBench, orders: FilePipeline) -> Tick:
    return lambda name="bench_depth", **options: bench.tick(name, **options)


def submit(bench: PipelineBench, files: int) -> str:
    versions = [FileVersion(f"/in/{n}.json", "1", 10) for n in range(files)]
    return submission.submit(bench.db, "orders", versions, request_key=f"k{files}").execution


def worker_run(
    bench: PipelineBench, status: dg.DagsterRunStatus, age: float = 0.0, tags: dict[str, str] | None = None
) -> dg.DagsterRun:
    """A run of the worker job, as Dagster has it; or of another one, by its tags."""
    job = definitions_job()
    tags = tags or {WORKER_TAG: "bench", QUEUE_TAG: "default"}
    run = bench.instance.create_run_for_job(job, tags=tags, status=status)
    if age:
        storage: Any = bench.instance.run_storage
        with storage.connect() as conn:
            conn.exec_driver_sql("update runs set start_time = ? where run_id = ?", (time.time() - age, run.run_id))
    return run


def wait_for_slot(bench: PipelineBench, run: dg.DagsterRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a step does whose pool is full. The storage in memory can do it, and says that it can't."""
    storage = bench.instance.event_log_storage
    monkeypatch.setattr(type(storage), "supports_global_concurrency_limits", True)
    storage.set_concurrency_slots("spark", 1)
    assert storage.claim_concurrency_slot("spark", "another run", "bench_drain").is_claimed
    assert not storage.claim_concurrency_slot("spark", run.run_id, "bench_drain").is_claimed


def definitions_job() -> dg.JobDefinition:
    @dg.job(name="stand_in")
    def stand_in() -> None:
        pass

    return stand_in


def test_no_work_starts_no_run(tick: Tick) -> None:
    answer = tick()
    assert not answer.run_requests
    assert "0 ready" in answer.skip_reason.skip_message


def test_work_starts_runs_up_to_the_limit_and_by_depth(bench: PipelineBench, tick: Tick) -> None:
    submit(bench, 30)
    assert len(tick().run_requests) == 1
    assert len(tick(max_workers=8).run_requests) == 2  # twenty batches a worker
    assert all(request.run_key is None for request in tick(max_workers=8).run_requests)


def test_a_tick_that_is_repeated_starts_nothing_twice(bench: PipelineBench, tick: Tick) -> None:
    submit(bench, 5)
    assert len(tick().run_requests) == 1
    worker_run(bench, dg.DagsterRunStatus.NOT_STARTED)
    assert not tick().run_requests
    assert "1 on their way" in tick().skip_reason.skip_message


def test_a_live_worker_counts_and_a_targeted_run_does_not(bench: PipelineBench, tick: Tick) -> None:
    submit(bench, 5)
    with Worker(bench.db, pipelines=["orders"], kinds=["targeted"], run_id="targeted"):
        assert len(tick().run_requests) == 1
    with Worker(bench.db, pipelines=["orders"], kinds=["batch", "callback"], run_id="drain"):
        assert not tick().run_requests


def test_a_crashed_run_does_not_silence_the_queue(bench: PipelineBench, tick: Tick) -> None:
    submit(bench, 5)
    worker_run(bench, dg.DagsterRunStatus.STARTED, age=600)  # killed before its worker's row was there
    assert len(tick().run_requests) == 1


def test_runs_that_fail_one_after_the_other_are_not_a_storm(bench: PipelineBench, tick: Tick) -> None:
    submit(bench, 5)
    failed = [worker_run(bench, dg.DagsterRunStatus.FAILURE)]
    assert len(tick().run_requests) == 1  # one that crashed is started again at once
    failed.append(worker_run(bench, dg.DagsterRunStatus.FAILURE))
    answer = tick()
    assert not answer.run_requests
    assert "the last worker runs failed: the next is tried in" in answer.skip_reason.skip_message
    bench.instance.add_run_tags(failed[1].run_id, {DEAD_TAG: "1"})
    assert len(tick().run_requests) == 1  # it did its work, and there were dead letters


def test_a_run_that_waits_for_a_slot_of_its_pool_is_on_its_way(
    bench: PipelineBench, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(bench, 5)
    waits = worker_run(bench, dg.DagsterRunStatus.STARTED, age=600)
    assert len(tick().run_requests) == 1
    wait_for_slot(bench, waits, monkeypatch)
    assert not tick().run_requests
    assert "1 on their way" in tick().skip_reason.skip_message


def test_batches_of_a_dead_worker_are_work(bench: PipelineBench, tick: Tick) -> None:
    execution = submit(bench, 1)
    bench.crash(execution, 0)
    assert len(tick().run_requests) == 1


def test_a_paused_queue_starts_nothing_and_says_so(bench: PipelineBench, tick: Tick) -> None:
    submit(bench, 5)
    executions.pause(bench.db, "default", "maintenance")
    answer = tick()
    assert not answer.run_requests
    assert "paused" in answer.skip_reason.skip_message


def test_a_tick_asks_as_little_of_a_thousand_batches_as_of_one(
    bench: PipelineBench, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    rows = Database.rows

    def counted(db: Database, statement: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        asked.append(statement)
        return rows(db, statement, parameters)

    submit(bench, 1)
    tick()
    monkeypatch.setattr(Database, "rows", counted)
    assert tick().run_requests
    of_one = len(asked)
    submit(bench, 1000)
    asked.clear()
    assert tick().run_requests
    assert len(asked) == of_one > 0


def test_a_callback_that_nobody_runs_is_launched_again_after_each_crash(bench: PipelineBench, tick: Tick) -> None:
    execution = submit(bench, 1)
    with Worker(bench.db) as worker:
        worker.finish(worker.claim(1)[0], {"rows_in": 1})
        assert not tick("orders_callbacks").run_requests  # a worker is there, and takes it
    (first,) = tick("orders_callbacks").run_requests
    assert first.partition_key == execution
    assert first.run_key == f"{execution}:1:0"
    (repeated,) = tick("orders_callbacks").run_requests
    assert repeated.run_key == first.run_key, "a tick that is repeated is dropped by its key"
    bench.crash(execution, kind="callback")
    (second,) = tick("orders_callbacks").run_requests
    assert second.run_key == f"{execution}:1:1"
