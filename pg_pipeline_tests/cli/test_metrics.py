"""`pg-pipeline metrics`: what Prometheus reads is what the tables say."""

from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pg_pipeline.cli.metrics import METRICS
from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.coordination.conftest import HandWorker, files


def read(text: str) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, which are in order of their names."""
    return {
        (sample.name.removeprefix("pg_pipeline_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_say_what_the_tables_say(program: Program, db: Database, hand: HandWorker) -> None:
    submission.register_pipeline(db, "orders", batch_files=2, notify=["https://example.invalid/hook"], policy="partial")
    submission.submit(db, "orders", files(8), request_key="k")
    zombie = HandWorker(db)
    (stolen,) = zombie.claim(1)
    zombie.die()
    hand.finish(*hand.claim(1), result={"quarantined": [{"ordinal": 0, "reason": "corrupt"}]})
    zombie.finish(stolen)
    ended = submission.submit(db, "orders", files(2, prefix="ended"), request_key="ended", priority=1).execution
    with Worker(db) as late:
        (lease,) = late.claim(1)
        executions.cancel(db, ended, "a test")
        with pytest.raises(LeaseLost):
            late.finish(lease)
    hand.fail(*hand.claim(1), retryable=False)
    submission.submit(db, "orders", files(8), request_key="known")  # ends at once, and tells
    found = read(program("metrics").stdout)
    assert {name for name, *_ in found} == {*METRICS, "up"}
    assert found["up",] == 1
    assert found["tasks", "default", "ready"] == 2
    assert found["attempts_recent", "batch", "fenced", "default"] == 1
    assert found["attempts_recent", "batch", "committed", "default"] == 1
    assert found["attempt_seconds_recent", "batch", "1", "default"] > 0
    assert found["finish_seconds_recent", "batch", "1", "default"] > 0
    assert found["unfinished_recent", "default", "taken over"] == 1
    assert found["unfinished_recent", "default", "execution ended"] == 1
    assert found["dead_letters", "orders", "default", "error"] == 1
    assert found["quarantined_files", "orders"] == 1
    assert found["outbox", "pending"] == 2
    assert found["oldest_task_seconds", "default"] > 0
    assert found["executions", "orders", "sealed"] == 1


def test_a_finish_is_timed_from_its_transactions_start_and_publishing_counts(
    program: Program, db: Database, conn: psycopg.Connection[Any]
) -> None:
    submission.submit(db, "orders", files(2), request_key="k")
    with Worker(db) as worker:
        (lease,) = worker.claim(1)
        worker.finish(lease, publish=lambda conn: conn.execute("select pg_sleep(0.3)"))
    conn.execute("update pipeline.attempt set claimed_at = claimed_at - interval '1 h'")
    found = read(program("metrics").stdout)
    assert 0.3 <= found["finish_seconds_recent", "batch", "0.5", "default"] < 3600
    assert found["attempt_seconds_recent", "batch", "0.5", "default"] > 3600
