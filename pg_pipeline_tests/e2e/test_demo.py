"""`pg-pipeline demo` counts right, and what it made answers to the commands of the README."""

import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from pg_pipeline.coordination import executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.postgres import embedded_server
from pg_pipeline.settings import get_settings
from pg_pipeline_tests.helpers import PROJECT, ChildProcess

MINUTES = 10 * 60.0


def test_the_demo_kills_a_worker_and_loses_and_doubles_nothing(
    session_dir: Path, tmp_path: Path, child: Callable[..., ChildProcess]
) -> None:
    state = session_dir / "demo"
    environment = {"PG_PIPELINE_STATE_DIR": str(state), "PG_PIPELINE_EMBEDDED_LINGER": "60", "DAGSTER_HOME": None}
    demo = child(None, "demo", "--files", "120", "--rows", "20", module="pg_pipeline", env=environment)
    assert demo.wait(MINUTES) == 0, demo.stderr + demo.stdout
    lines = [line.strip() for line in demo.stdout.splitlines()]
    shown = dict(re.split(" {2,}", line, maxsplit=1) for line in lines if "  " in line)
    assert shown["files in"] == "120"
    assert shown["quarantined files"] == "8 of 8 broken ones"
    assert shown["duplicates"] == shown["lost"] == "0"
    assert shown["audit"] == "clean"
    assert "kill -9 of worker 1" in demo.stdout
    assert int(shown["lost attempts"].split()[0]) >= 1
    *_, page, opens_the_ui = demo.stdout.splitlines()
    assert re.fullmatch(r"Dagster's UI: (\S*pg-pipeline|\S+ -m pg_pipeline) up", opens_the_ui)
    assert re.search(r"(pg-pipeline|pg_pipeline) report \d{8}-[0-9a-f]+$", page)

    with Database(embedded_server(get_settings(state_dir=str(state))).dsn()) as db:
        (execution,) = [found["execution"] for found in executions.listed(db)]
        assert partitions.unreported(db, ["orders"]) == []
        landed = tmp_path / "data" / "orders" / "day1"
        shutil.copytree(next((state / "demo").glob("2*")), landed, ignore=shutil.ignore_patterns("orders-0[1-9]*"))
        then = time.time() - 60
        for path in landed.iterdir():
            os.utime(path, (then, then))
        home = {**environment, "DAGSTER_HOME": str(state / "dagster")}
        said = []
        for command in readme_commands(execution):
            process = child(None, *command, module="dagster", env=home, cwd=tmp_path)
            assert process.wait(MINUTES) == 0, process.stderr
            said.append(process.stdout + process.stderr)
        assert f"{execution}~00000 skipped: already committed by run" in said[1]
        assert f"{execution} skipped: its callback has run" in said[2]
        newest = partitions.execution(db, executions.listed(db)[0]["execution"])
        assert newest.execution in said[0]
        assert (newest.status, newest.expected) == ("finished", 10)
        assert executions.audit(db) == []


def readme_commands(execution: str) -> list[list[str]]:
    """The README's commands, for an execution that is there."""
    lines = [line for line in (PROJECT / "README.md").read_text().splitlines() if line.startswith("dagster ")]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert len(commands) == 4
    return [[part.replace("20261118-0001", execution) for part in command] for command in commands]
