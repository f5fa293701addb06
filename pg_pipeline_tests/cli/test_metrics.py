"""`pg-pipeline metrics`: what Prometheus reads is what the tables say, also while Postgres is away."""

import socket
import sys
from collections.abc import Callable
from urllib.request import urlopen

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from pg_pipeline.cli.metrics import METRICS
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.coordination.conftest import HandWorker, files
from pg_pipeline_tests.helpers import ChildProcess, wait_until


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
    hand.fail(*hand.claim(1), retryable=False)
    submission.submit(db, "orders", files(8), request_key="known")  # ends at once, and tells
    found = read(program("metrics").stdout)
    assert {name for name, *_ in found} == {*METRICS, "up"}
    assert found["up",] == 1
    assert found["tasks", "default", "ready"] == 2
    assert found["attempts_recent", "batch", "fenced", "default"] == 1
    assert found["attempts_recent", "batch", "committed", "default"] == 1
    assert found["attempt_seconds_recent", "batch", "1", "default"] > 0
    assert found["dead_letters", "orders", "default", "error"] == 1
    assert found["quarantined_files", "orders"] == 1
    assert found["outbox", "pending"] == 1
    assert found["oldest_task_seconds", "default"] > 0
    assert found["executions", "orders", "sealed"] == 1


def test_metrics_are_served_and_outlive_the_database(
    child: Callable[..., ChildProcess], dsn: str, db: Database, server: object
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = (sys.executable, "-m", "pg_pipeline", "metrics", "--port", str(port))
        refused = child(command=command, env={"PG_PIPELINE_DSN": dsn})
        assert refused.wait() == 1
        assert "Nothing can listen on" in refused.stderr
    serving = child(command=command, env={"PG_PIPELINE_DSN": dsn})
    serving.wait_for_output("Metrics are at")

    def scraped() -> dict[tuple[str, ...], float]:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return read(answer.read().decode())

    assert scraped()["up",] == 1
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    away = str(name) + "_away"
    admin = dsn.replace(str(name), "postgres")
    db.close()
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'".encode())
        conn.execute(f'alter database "{name}" rename to "{away}"'.encode())
        assert scraped() == {("up",): 0}
        conn.execute(f'alter database "{away}" rename to "{name}"'.encode())
    wait_until(lambda: scraped()["up",] == 1, what="the metrics to come back")
