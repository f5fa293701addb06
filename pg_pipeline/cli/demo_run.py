"""The demo: a delivery with broken files, two workers, one killed halfway, and the count at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
from psycopg import sql
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pg_pipeline.cli.demo_files import Planted, plant
from pg_pipeline.cli.output import console, say, typed
from pg_pipeline.coordination import executions, partitions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.errors import PgPipelineError
from pg_pipeline.pipelines.orders import orders
from pg_pipeline.resources import CoordinationResource
from pg_pipeline.resources.instance import VARIABLE, dagster_home
from pg_pipeline.sensors.reaper import report_late
from pg_pipeline.sensors.runs import report_lost_runs
from pg_pipeline.settings import get_settings

MODULE = "pg_pipeline.definitions"
JOB = "pg_pipeline_worker"
PATIENCE = 600.0


class DemoFailed(PgPipelineError):
    """The demo did not come to its end."""


def run(files: int, rows: int) -> None:
    """The whole demo; DemoFailed when the count is not as it must be."""
    began = time.monotonic()
    resource = CoordinationResource()
    try:
        execution = _Demo(resource).run(files, rows)
    finally:
        resource.close()
    say(f"Done in {time.monotonic() - began:.0f} s. A page of it: {typed('report', execution)}")
    say(f"Dagster's UI: {typed('up')}", style="bold")


class _Demo:
    def __init__(self, resource: CoordinationResource) -> None:
        self._bar = _Bar()
        self._resource = resource
        self._workers: list[subprocess.Popen[bytes]] = []

    def run(self, files: int, rows: int) -> str:
        with self._bar.shown(), self._ended():
            self._set_up(files, rows)
            execution = self._enqueue()
            killed = self._work(execution)
        self._tell(execution, killed)
        return execution

    def _set_up(self, files: int, rows: int) -> None:
        settings = get_settings()
        step = self._bar.step("Postgres, Java and files", 3)
        self.db: Database = self._resource.db
        step(1)
        ensure_java()
        self._home = dagster_home(settings)
        step(2)
        folder = Path(os.path.abspath(settings.state_dir.expanduser())) / "demo"
        shutil.rmtree(folder, ignore_errors=True)
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self._planted: Planted = plant(folder / stamp, files=files, rows=rows)
        submission.register_pipeline(self.db, orders.name, **orders.registration)
        step(3)

    def _enqueue(self) -> str:
        """The real asset, by the real command: one run that submits the folder."""
        step = self._bar.step("Submit (dagster asset materialize)", 1)
        key = f"demo:{self._planted.folder.name}"
        config = {"ops": {"orders__enqueued": {"config": {"paths": [str(self._planted.folder)], "request_key": key}}}}
        select = ["--select", "orders/enqueued", "--config-json", json.dumps(config)]
        process = self._start("enqueue", ["asset", "materialize", "-m", MODULE, *select])
        self._wait(lambda: process.poll() is not None, "the submission")
        if process.returncode:
            self._give_up("enqueue", "The submission failed")
        step(1)
        found = next((e for e in executions.listed(self.db, limit=20) if e["request_key"] == key), None)
        if found is None:
            raise DemoFailed("The submission made no execution: see pg-pipeline executions.")
        return str(found["execution"])

    def _work(self, execution: str) -> str:
        """Two workers; the first is killed when half of the batches are in and it holds one."""
        expected = partitions.execution(self.db, execution).expected
        step = self._bar.step("Batches (two workers)", expected)
        config = self._logs / "worker.json"
        config.write_text(json.dumps({"ops": {"pg_pipeline_drain": {"config": {"slots": 1, "linger_seconds": 5.0}}}}))
        command = ["job", "execute", "-m", MODULE, "-j", JOB, "--config", str(config)]
        first = self._start("worker-1", command)
        second = self._start("worker-2", command)
        killed = ""

        def finished() -> bool:
            nonlocal killed
            report = partitions.execution(self.db, execution)
            done = report.expected - report.remaining
            step(done)
            if not killed and done >= report.expected // 2 and (lease := self._lease_of(execution, first)):
                first.send_signal(signal.SIGKILL)
                first.wait()
                killed = f"worker 1 (pid {first.pid}) while it worked on batch {lease['batch']}"
                self._bar.note(f"kill -9 of {killed}; worker 2 takes over")
            if second.poll() is not None and report.status != "finished":
                self._give_up("worker-2", "The second worker ended before the work did")
            if first.poll() is not None and not killed and report.status != "finished":
                self._give_up("worker-1", "The first worker ended by itself")
            return report.status == "finished"

        self._wait(finished, "the callback")
        self._wait(lambda: second.poll() is not None, "the second worker to end")
        return killed

    def _lease_of(self, execution: str, worker: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """What this process holds, and has held long enough to be in the middle of it."""
        mine = [
            lease
            for lease in executions.leases(self.db)
            if lease["execution"] == execution
            and lease["kind"] == "batch"
            and lease["worker_name"].endswith(f":{worker.pid}")
        ]
        old = [lease for lease in mine if (datetime.now(UTC) - lease["claimed_at"]).total_seconds() > 0.2]
        return old[0] if old else None

    def _tell(self, execution: str, killed: str) -> None:
        report = partitions.execution(self.db, execution)
        attempts = executions.attempts(self.db, execution)
        violations = executions.audit(self.db, execution)
        doubled, found = self._count(execution)
        lost, fenced = (sum(a["outcome"] == outcome for a in attempts) for outcome in ("lost", "fenced"))
        _catch_up(self._home, self.db)
        table = Table(show_header=False, box=None, pad_edge=False)
        missing = self._planted.rows - found
        for name, value in (
            ("files in", f"{report.files}"),
            ("rows out", f"{found:,}"),
            ("batches", f"{report.expected}"),
            ("attempts", f"{len(attempts)}"),
            ("lost attempts", f"{lost} ({killed or 'no worker was killed'})"),
            ("fenced attempts", f"{fenced}"),
            ("quarantined files", f"{report.quarantined} of {self._planted.broken} broken ones"),
            ("duplicates", f"{doubled}"),
            ("lost", f"{missing}"),
            ("audit", "clean" if not violations else f"{len(violations)} violations"),
        ):
            right = value in ("0", "clean") or name == "quarantined files"
            table.add_row(name, Text(value, style="green" if right else ""))
        console.print()
        console.print(table)
        console.print()
        console.print("Orders by country, from the callback that ran once:")
        for row in (report.summary or {}).get("rows", []):
            console.print(f"  {row['country']}  {row['orders']:>7,} orders  {float(row['amount']):>14,.2f}")
        console.print()
        if violations or doubled or missing or report.quarantined != self._planted.broken:
            raise DemoFailed(f"The count is wrong: look with pg-pipeline explain {execution}.")

    def _count(self, execution: str) -> tuple[int, int]:
        """Orders that are in the table twice, and how many there are, of this execution."""
        statement = sql.SQL(
            "select coalesce(sum(n - 1), 0)::bigint as doubled, coalesce(sum(n), 0)::bigint as found "
            "from (select count(*) as n from {} where _execution = %s group by order_id) o"
        ).format(sql.Identifier("analytics", "orders"))
        row = self.db.write(lambda conn: conn.execute(statement, (execution,)).fetchone())
        assert row is not None
        return int(row["doubled"]), int(row["found"])

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, VARIABLE: str(self._home), "PYTHONWARNINGS": "ignore"}
        with (self._logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dagster", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._workers.append(process)
        return process

    def _wait(self, condition: Any, what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise DemoFailed(f"Waited {PATIENCE:.0f} s for {what}: see the logs in {self._logs}.")
            time.sleep(0.1)

    def _give_up(self, name: str, what: str) -> None:
        log = self._logs / f"{name}.log"
        lines = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line or "Error" in line]
        raise DemoFailed(f"{what} ({lines[-1].strip()[:300] if lines else 'it said nothing'}): see {log}.")

    @contextmanager
    def _ended(self) -> Iterator[None]:
        """Leave no process behind, whatever happened."""
        try:
            yield
        finally:
            for process in self._workers:
                if process.poll() is None:
                    process.terminate()
            for process in self._workers:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


def _catch_up(home: Path, db: Database) -> None:
    """What the reaper sensor does in `up`: the killed run shows as failed, and what it committed and did not tell is
    told."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        report_lost_runs(instance, db, "pg_pipeline")
        report_late(instance, db, {orders.name: orders})


class _Bar:
    """Progress bars on a terminal; whole lines elsewhere."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console) if console.is_terminal else None

    @contextmanager
    def shown(self) -> Iterator[None]:
        if self._progress is None:
            yield
            return
        with self._progress:
            yield

    def step(self, name: str, total: int) -> Any:
        if self._progress is None:
            return _Lines(name, total)
        progress, task = self._progress, self._progress.add_task(name, total=total)

        def update(done: int) -> None:
            progress.update(task, completed=done)

        return update

    def note(self, text: str) -> None:
        console.print(text)


class _Lines:
    """A line at the start, at each quarter, and at the end."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._told = name, total, -1
        console.print(f"{name} …")

    def __call__(self, done: int) -> None:
        quarter = 4 * done // max(self._total, 1)
        if quarter > max(self._told, 0) or (done == self._total and self._told < 4):
            self._told = quarter
            console.print(f"{self._name}: {done} of {self._total}")
