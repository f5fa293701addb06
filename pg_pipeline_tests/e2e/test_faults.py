"""Dagster's own faults, with all of it running: its processes killed, and runs repeated beside the first attempt."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import psycopg
import pytest
import requests

from pg_pipeline.coordination import executions, submission
from pg_pipeline_tests.e2e import held
from pg_pipeline_tests.e2e.stack import MINUTES, Up
from pg_pipeline_tests.helpers import wait_until

SEED = 20260
ROUNDS = 8
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
LAUNCH = """mutation ($params: ExecutionParams!) {launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"""
AGAIN = """mutation ($params: ReexecutionParams!) {launchRunReexecution(reexecutionParams: $params) {
  __typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"""


def plant(up: Up, delivery: str, first: int, files: int = 4, rows: int = 5) -> None:
    place = up.folder / "landing" / delivery
    place.mkdir(parents=True)
    for number in range(files):
        numbers = range(first + number * rows, first + (number + 1) * rows)
        lines = [f'{{"order_id": {n}, "amount": 1.25}}\n' for n in numbers]
        (place / f"{number}.json").write_text("".join(lines))
    (place / "_SUCCESS").touch()


def ask(up: Up, query: str, params: dict[str, Any]) -> str:
    """A run that a person asks for in the UI; its id."""
    answer = requests.post(
        f"{up.address}/graphql", json={"query": query, "variables": {"params": params}}, timeout=120
    ).json()
    (found,) = answer["data"].values()
    assert found["__typename"] == "LaunchRunSuccess", answer
    return str(found["run"]["runId"])


def rows(up: Up) -> list[int]:
    with psycopg.connect(up.db.dsn) as conn:
        if conn.execute("select to_regclass('analytics.held')").fetchone() == (None,):
            return []
        return [row[0] for row in conn.execute("select order_id from analytics.held order by 1")]


def holder(up: Up) -> dict[str, Any] | None:
    found = [lease for lease in executions.leases(up.db) if lease["kind"] == "batch"]
    return found[0] if found else None


def ended(instance: dg.DagsterInstance, run_id: str) -> str | None:
    run = instance.get_run_by_id(run_id)
    return run.status.value if run is not None and run.status.value in ENDED else None


def logs(instance: dg.DagsterInstance, run_id: str) -> str:
    return "\n".join(record.message for record in instance.all_logs(run_id))


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that holds the Spark work of whatever `up` starts after it."""
    path = tmp_path / "hold"
    monkeypatch.setenv(held.VARIABLE, str(path))
    return path


@pytest.mark.long
@pytest.mark.parametrize("up", [{"PG_PIPELINE_PIPELINES": held.__name__}], indirect=True)
def test_a_run_repeated_beside_its_first_attempt_touches_nothing_and_takes_over_only_from_the_dead(
    holding: Path, up: Up
) -> None:
    holding.touch()
    submission.configure_queue(up.db, "default", lease="5 s", grace="1 s")
    plant(up, "day1", 0, files=2)
    first = wait_until(lambda: holder(up), timeout=MINUTES, what="a worker run that holds the batch")
    key = f"{first['execution']}~{first['batch']:05}"
    selector = {
        "repositoryLocationName": held.__name__,
        "repositoryName": "__repository__",
        "jobName": "__ASSET_JOB",
        "assetSelection": [{"path": ["held", "batches"]}],
    }
    tags = {"tags": [{"key": "dagster/partition", "value": key}]}
    with dg.DagsterInstance.from_config(str(up.state / "dagster")) as instance:
        beside = ask(up, LAUNCH, {"selector": selector, "runConfigData": {}, "executionMetadata": tags})
        assert wait_until(lambda: ended(instance, beside), timeout=MINUTES, what="the run beside it") == "SUCCESS"
        assert f"{key} is held by {first['worker_name']}" in logs(instance, beside)

        # Somebody takes it for dead and starts it again from its failure, while it lives.
        run = instance.get_run_by_id(str(first["run_id"]))
        assert run is not None
        instance.report_run_failed(run, "so thinks somebody")
        again = ask(up, AGAIN, {"parentRunId": run.run_id, "strategy": "FROM_FAILURE"})
        assert wait_until(lambda: ended(instance, again), timeout=MINUTES, what="the second try") == "SUCCESS"
        now = holder(up)
        assert now is not None
        same = [(lease["worker"], lease["claimed_at"]) for lease in (first, now)]
        assert same[0] == same[1], "the living keep what they hold"
        assert rows(up) == []

        # Stopped past its lease it counts as dead; its successor commits, and it wakes up as a zombie.
        pid = int(first["worker_name"].rpartition(":")[2])
        os.kill(pid, signal.SIGSTOP)
        holding.unlink()
        try:
            taken = ask(up, AGAIN, {"parentRunId": run.run_id, "strategy": "FROM_FAILURE"})
            wait_until(lambda: len(rows(up)) == 10, timeout=MINUTES, what="the successor to commit")
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: ended(instance, taken), timeout=MINUTES, what="the successor to end")
        wait_until(lambda: not psutil.pid_exists(pid), timeout=MINUTES, what="the zombie to end")
    wait_until(lambda: (found := up.execution()) and found.status == "finished", timeout=MINUTES, what="the end")
    assert rows(up) == list(range(10))
    outcomes = [attempt["outcome"] for attempt in executions.attempts(up.db, str(first["execution"]))]
    assert sorted(outcomes)[:2] == ["committed", "committed"]
    assert set(outcomes) <= {"committed", "lost", "fenced"}
    assert executions.audit(up.db) == []


def part_of(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    names = ("webserver", "daemon", "grpc", "java", "multiprocessing")
    return next((name for name in names if name in command), "other")


@pytest.mark.long
@pytest.mark.parametrize("up", [{"PG_PIPELINE_PIPELINES": held.__name__}], indirect=True)
def test_run_workers_daemon_and_webserver_killed_at_random_cost_nothing(holding: Path, up: Up) -> None:
    """`up` ends when a part of Dagster does, as under a supervisor, which starts it again."""
    chance = random.Random(SEED)
    submission.configure_queue(up.db, "default", lease="5 s", grace="1 s")
    killed = []
    for number in range(ROUNDS):
        plant(up, f"day{number}", number * 20)
        wanted = chance.choice(["multiprocessing", "java", "daemon", "webserver", "grpc"])

        def victim(wanted: str = wanted) -> psutil.Process | None:
            with suppress(psutil.Error):
                found = [one for pid in up.family() if part_of(one := psutil.Process(pid)) == wanted]
                return chance.choice(found) if found else None
            return None

        try:
            one = wait_until(victim, timeout=60, what=f"a process of {wanted}")
        except AssertionError:
            continue  # all is done, and nobody works
        with suppress(psutil.NoSuchProcess):
            one.kill()
            killed.append(wanted)
        up.bring_back(seconds=chance.uniform(5, 20))
    assert len(killed) > ROUNDS // 2, killed

    def done() -> bool:
        up.bring_back(seconds=1)
        return len(rows(up)) == ROUNDS * 20 and {x["status"] for x in executions.listed(up.db)} == {"finished"}

    wait_until(done, timeout=2 * MINUTES, what=f"all rows, after {killed} were killed")
    assert rows(up) == list(range(ROUNDS * 20))
    assert len(executions.listed(up.db)) == ROUNDS
    assert executions.audit(up.db) == []
    with dg.DagsterInstance.from_config(str(up.state / "dagster")) as instance:
        listed = instance.get_dynamic_partitions("held_batches")
        everything = dg.DynamicPartitionsDefinition(name="held_batches")

        def bar() -> bool:
            up.bring_back(seconds=1)
            found = instance.get_status_by_partition(dg.AssetKey(["held", "batches"]), listed, everything) or {}
            return {getattr(status, "name", None) for status in found.values()} == {"MATERIALIZED"}

        wait_until(bar, timeout=MINUTES, what="the partition bar to be all green")

        def all_ended() -> bool:
            return {run.status.value for run in instance.get_runs()} <= ENDED

        wait_until(all_ended, timeout=MINUTES, what="every run to end")
