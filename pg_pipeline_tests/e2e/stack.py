"""The stack as a person starts it: `pg-pipeline up` on free ports, with an embedded Postgres of its own."""

import os
import signal
import socket
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


@pytest.fixture
def up(
    tmp_path: Path, session_dir: Path, child: Callable[..., ChildProcess], request: pytest.FixtureRequest
) -> Iterator[Up]:
    """In a folder of a user: the project's workspace.yaml, the README's own pipeline, landing folders, an embedded
    Postgres of its own. Its parameter is further variables."""
    workspace = yaml.safe_load((PROJECT / "workspace.yaml").read_text())
    workspace["load_from"][0]["python_module"]["working_directory"] = str(PROJECT)
    (tmp_path / "workspace.yaml").write_text(yaml.safe_dump(workspace))
    (readme,) = blocks("python", pages=[PROJECT / "README.md"])
    (tmp_path / "my_project.py").write_text(readme.code)
    with socket.socket() as probe, socket.socket() as other:
        probe.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, pages = probe.getsockname()[1], other.getsockname()[1]
    state = session_dir / f"up-{uuid.uuid4().hex[:4]}"
    environment = {"PG_PIPELINE_STATE_DIR": str(state), "PG_PIPELINE_EMBEDDED_LINGER": "0", "DAGSTER_HOME": None}
    environment |= getattr(request, "param", {})
    ports = ("--port", str(port), "--pages-port", str(pages))
    process = child(None, "up", *ports, module="pg_pipeline", env=environment, cwd=tmp_path)
    process.wait_for_output("Ready", timeout=MINUTES)
    with Database(embedded_server(get_settings(state_dir=str(state))).dsn()) as db:
        yield Up(process, tmp_path, state, db, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{pages}", child)
        if process.alive:
            process.signal(signal.SIGINT)
            process.wait()
