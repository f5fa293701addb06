"""`pg-pipeline up`: Postgres, Dagster's web UI and its daemon, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import psutil
import requests
import typer

from pg_pipeline.cli.output import console
from pg_pipeline.cli.serve import answering, application, bound
from pg_pipeline.coordination import migrations
from pg_pipeline.coordination.database import Database
from pg_pipeline.embedded.java import ensure_java
from pg_pipeline.embedded.postgres import ensure_running
from pg_pipeline.errors import ConfigurationError, PgPipelineError
from pg_pipeline.resources.instance import dagster_home
from pg_pipeline.settings import Settings, get_settings

START_SECONDS = 180.0
STOP_SECONDS = 20.0


class UpFailed(PgPipelineError):
    """Dagster did not come up, or went away."""


def up(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the web UI.")] = 3000,
    host: Annotated[str, typer.Option(help="Where the web UI listens.")] = "127.0.0.1",
    pages_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of reports, metrics and health; the next one by default.")
    ] = None,
) -> None:
    """Start Postgres, the Dagster web UI and the daemon; Ctrl-C stops what was started.

    It loads the module that PG_PIPELINE_PIPELINES names, else the workspace.yaml of this folder, else the examples.
    Beside the web UI it serves what `pg-pipeline serve` does: Dagster's runs link to the reports there.
    """
    if _taken(host, port):
        raise ConfigurationError(f"Port {port} on {host} is taken: choose another with --port.")
    settings = get_settings()
    dsn = ensure_running(settings)
    if not migrations.check(dsn, timeout=settings.connect_timeout).current:
        migrations.migrate(dsn, timeout=settings.connect_timeout)
    ensure_java()
    home = dagster_home(settings)
    log = Path(os.path.abspath(settings.state_dir.expanduser())) / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console.print(f"Postgres is up. Dagster starts (log: {log}) …")
    address = _url(host, port)
    pages_port = pages_port or (port + 1 if port < 65535 else port - 1)
    pages = _url(host, pages_port)
    settings = settings.model_copy(update={"pages_url": settings.pages_url or pages})
    with (
        Database(dsn, timeout=settings.connect_timeout) as db,
        bound(host, pages_port, application(db, address)) as server,
        _stoppable(),
        _dagster(host, port, home, log, settings) as process,
        answering(server),
    ):
        _wait(process, address, log)
        for trouble in _load_errors(address):
            console.print(f"[red]A code location did not load:[/red] {trouble} (see {log})")
        console.print(f"Reports, metrics and health: {pages}")
        console.print(f"Ready: {address} (drop files into a landing folder; Ctrl-C stops)")
        with suppress(KeyboardInterrupt):
            code = process.wait()
            raise UpFailed(f"Dagster ended by itself with code {code}: see {log}.")
        console.print("Stopping …")


@contextmanager
def _dagster(host: str, port: int, home: Path, log: Path, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """`dagster dev` in a session of its own: a Ctrl-C reaches it through us, once, and nothing of it stays behind."""
    what = ["-m", settings.pipelines or "pg_pipeline.definitions"]
    if settings.pipelines is None and Path("workspace.yaml").exists():
        what = []
    command = [sys.executable, "-m", "dagster", "dev", "--host", host, "--port", str(port), *what]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "DAGSTER_HOME": str(home), "PG_PIPELINE_PAGES_URL": str(settings.pages_url)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            restore_signals=True,
            preexec_fn=_default_signals,  # noqa: PLW1509 - no threads here yet that could hold a lock
        )
    try:
        yield process
    finally:
        _stop(process)


def _default_signals() -> None:
    """A parent in the background of a shell ignores SIGINT, and its children would too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            raise UpFailed(f"Dagster did not start (code {process.returncode}): see {log}.")
        with suppress(requests.RequestException):
            if requests.get(f"{address}/server_info", timeout=2).ok:
                return
        if time.monotonic() > until:
            raise UpFailed(f"Dagster did not answer at {address} within {START_SECONDS:.0f} s: see {log}.")
        time.sleep(0.25)


def _load_errors(address: str) -> list[str]:
    """What the web UI would show in red: one sentence per code location that did not load."""
    entry = "name locationOrLoadError {... on PythonError {message}}"
    asked = f"{{workspaceOrError {{... on Workspace {{locationEntries {{{entry}}}}}}}}}"
    try:
        answer = requests.post(f"{address}/graphql", json={"query": asked}, timeout=30).json()
        entries = answer["data"]["workspaceOrError"]["locationEntries"]
    except (requests.RequestException, KeyError, TypeError, ValueError):
        return []
    found = [(entry["name"], (entry["locationOrLoadError"] or {}).get("message")) for entry in entries]
    return [f"{name}: {message.strip().splitlines()[-1]}" for name, message in found if message]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the leader, then what is left of its session (runs hand their leases back), then by force."""
    family = _session(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    family += [one for one in _session(process.pid) if one not in family]
    for way in (signal.SIGTERM, signal.SIGKILL):
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(way)
        _, family = psutil.wait_procs(family, timeout=STOP_SECONDS)
        if not family:
            return


def _session(leader: int) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess, PermissionError):
            if one.pid != leader and os.getsid(one.pid) == leader:
                found.append(one)
    return found


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _taken(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
