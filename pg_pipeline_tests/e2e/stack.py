"""The stack as a person starts it: `pg-pipeline up` on free ports, with an embedded Postgres of its own."""

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from pg_pipeline.coordination import executions, partitions
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.postgres import embedded_server
from pg_pipeline.settings import get_settings
from pg_pipeline_tests.helpers import PROJECT, ChildProcess
from pg_pipeline_tests.packaging.pages import blocks

MINUTES = 5 * 60.0


@dataclass
class Up:
    process: ChildProcess
    folder: Path
    state: Path
    db: Database
    address: str
    pages: str
    child: Callable[..., ChildProcess]
    start: Callable[[], ChildProcess]

    def bring_back(self, *, seconds: float) -> None:
        """As a supervisor: look for so long whether it ends, and if it did, start it again."""
        family = self.family() if self.process.alive else []
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.alive:
            return
        for pid in family:  # what an `up` that was killed left behind would hold its ports
            with suppress(ProcessLookupError):
                if is_dagsters(pid):
                    os.kill(pid, signal.SIGKILL)
        self.process = self.start()

    def execution(self) -> partitions.ExecutionReport | None:
        found = executions.listed(self.db)
        return partitions.execution(self.db, found[0]["execution"]) if found else None

    def family(self) -> list[int]:
        """Every process of the sessions that it started."""
        leaders = {self.process.pid, *(one.pid for one in psutil.Process(self.process.pid).children(recursive=True))}
        found = []
        for pid in psutil.pids():
            with suppress(ProcessLookupError):
                if pid in leaders or os.getsid(pid) in leaders:
                    found.append(pid)
        return found


def is_dagsters(pid: int) -> bool:
    """Whether it is not Postgres or its keeper, which have users of their own."""
    with suppress(psutil.Error):
        command = " ".join(psutil.Process(pid).cmdline())
        return "dagster" in command or "multiprocessing" in command or "java" in command
    return False


def write_workspace(folder: Path) -> None:
    """The project's workspace.yaml, as it is in a folder of a user."""
    workspace = yaml.safe_load((PROJECT / "workspace.yaml").read_text())
    workspace["load_from"][0]["python_module"]["working_directory"] = str(PROJECT)
    (folder / "workspace.yaml").write_text(yaml.safe_dump(workspace))


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
def up(
    tmp_path: Path, session_dir: Path, child: Callable[..., ChildProcess], request: pytest.FixtureRequest
) -> Iterator[Up]:
    """In a folder of a user: the project's workspace.yaml, the README's own pipeline, landing folders, an embedded
    Postgres of its own. Its parameter is further variables."""
    write_workspace(tmp_path)
    (readme,) = blocks("python", pages=[PROJECT / "README.md"])
    (tmp_path / "my_project.py").write_text(readme.code)
    port, pages = free_ports(2)
    state = session_dir / f"up-{uuid.uuid4().hex[:4]}"
    environment = {"PG_PIPELINE_STATE_DIR": str(state), "PG_PIPELINE_EMBEDDED_LINGER": "0", "DAGSTER_HOME": None}
    environment |= getattr(request, "param", {})
    ports = ("--port", str(port), "--pages-port", str(pages))

    def start() -> ChildProcess:
        process = child(None, "up", *ports, module="pg_pipeline", env=environment, cwd=tmp_path)
        process.wait_for_output("Ready", timeout=MINUTES)
        return process

    process = start()
    with Database(embedded_server(get_settings(state_dir=str(state))).dsn()) as db:
        made = Up(process, tmp_path, state, db, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{pages}", child, start)
        yield made
        if made.process.alive:
            made.process.signal(signal.SIGINT)
            made.process.wait()
