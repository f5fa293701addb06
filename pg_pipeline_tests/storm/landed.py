"""Dagster in a storm: `pg-pipeline up` with a landing folder, of whose processes any one or all are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.e2e.stack import free_ports
from pg_pipeline_tests.helpers import PROJECT

LANDED = "landed"
VARIABLE = "STORM_LANDING"
PARTS = {
    "webserver": "Dagster's webserver",
    "daemon": "Dagster's daemon",
    "grpc": "Dagster's code server",
    "multiprocessing": "a Dagster run",
    "java": "a Dagster run's Spark",
}
SETTLE = 45.0  # between two strikes: a start takes half of it, and something must come of it
AGAIN = 3.0  # between two starts: Postgres may be away

# What `up` loads.
pipeline = FilePipeline(
    name=LANDED,
    landing=os.environ.get(VARIABLE, "landing"),
    format="json",
    schema="order_id long, amount decimal(12,2)",
    sink=PostgresTable("public.landed_orders"),
    transform=lambda df, _batch: df.where("amount > 0"),
    queue=LANDED,
    batch_files=3,
)
defs = pipeline.definitions()


class Dagster:
    """`up`, started again whenever it is gone, as a supervisor does: it ends when one of its parts does."""

    def __init__(self, state: Path, landing: Path) -> None:
        port, pages = free_ports(2)
        self._command = [sys.executable, "-m", "pg_pipeline", "up", "--port", str(port), "--pages-port", str(pages)]
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"},
            "PG_PIPELINE_STATE_DIR": str(state),
            "PG_PIPELINE_EMBEDDED_LINGER": "0",
            "PG_PIPELINE_PIPELINES": __name__,
            "PYTHONPATH": str(PROJECT),
            VARIABLE: str(landing),
        }
        landing.mkdir(parents=True, exist_ok=True)
        self._state = state
        self._process: subprocess.Popen[bytes] | None = None
        self._family: set[psutil.Process] = set()
        self._not_before = 0.0
        self._struck = time.monotonic()

    def tend(self) -> None:
        now = time.monotonic()
        if (self._process is not None and self._process.poll() is None) or now < self._not_before:
            return
        self._end_family()
        self._not_before = now + AGAIN
        with (self._state / "up.out").open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._state,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def strike(self, chance: random.Random) -> str | None:
        """One of its processes, or all of them; None while it has just been struck."""
        dice, choice = chance.random(), chance.random()
        if self._process is None or time.monotonic() - self._struck < SETTLE:
            return None
        self._struck = time.monotonic()
        self._family |= set(self._members())
        by_part: dict[str, list[psutil.Process]] = {}
        for one in self._family:
            with contextlib.suppress(psutil.Error):
                by_part.setdefault(_part(one), []).append(one)
        parts = sorted(part for part in by_part if part in PARTS)
        if dice < 0.25 or not parts:
            self._end_family()
            self._process.kill()
            self._process.wait()
            return "all of Dagster"
        part = parts[int(choice * len(parts))]
        for one in by_part[part]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        return PARTS[part]

    def close(self) -> None:
        if self._process is None:
            return
        self._family |= set(self._members())
        self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self._process.kill()
        self._process.wait()
        self._end_family()

    def _members(self) -> Iterator[psutil.Process]:
        """Its children, and who is in a session of theirs; not Postgres, whom others kill, nor its keeper."""
        assert self._process is not None
        try:
            leaders = {one.pid for one in psutil.Process(self._process.pid).children(recursive=True)}
        except psutil.Error:
            leaders = set()
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if (one.pid in leaders or os.getsid(one.pid) in leaders) and _part(one) != "postgres":
                    yield one

    def _end_family(self) -> None:
        for one in self._family:
            with contextlib.suppress(psutil.Error):
                one.kill()  # psutil knows a pid that was reused
        self._family.clear()


def _part(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "keeper" in command or process.name() == "postgres":
        return "postgres"
    return next((part for part in PARTS if part in command), "other")
