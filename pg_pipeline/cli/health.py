"""`pg-pipeline health`: is what runs here well? For a container's health check, and for /health of `serve` and `up`."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Annotated, Any

import psutil
import psycopg
import requests
import typer

from pg_pipeline.cli.findings import Finding, tell
from pg_pipeline.cli.output import AsJson
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.metrics import WorkerHealth, health_limit, worker_health
from pg_pipeline.embedded.postgres import embedded_server
from pg_pipeline.errors import PgPipelineError
from pg_pipeline.settings import get_settings

DAEMON_SECONDS = 300.0  # a daemon of Dagster is heard of every 30 s, later when an evaluation takes long
ANSWER_SECONDS = 20.0
DAEMONS = "{instance {daemonHealth {allDaemonStatuses {daemonType required lastHeartbeatTime}}}}"


def health(
    up: Annotated[
        str | None, typer.Option(metavar="URL", help="Also the web UI there and its daemons: http://127.0.0.1:3000.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check Postgres and this host's workers (with --up, Dagster too); exit 3 where something needs a restart.

    A worker is not well when it has been silent for twice its lease; one whose process has gone needs no restart.
    Nothing is started by it: an embedded Postgres that is down is a problem found.
    """
    settings = get_settings()
    with Database(settings.dsn or embedded_server(settings).dsn(), timeout=settings.connect_timeout) as db:
        tell(findings(db, up), as_json)


def findings(db: Database, up: str | None = None) -> list[Finding]:
    found, limit = _workers(db)
    return [*found, *(_dagster(up.rstrip("/"), limit) if up else ())]


def _workers(db: Database) -> tuple[list[Finding], float]:
    """Postgres and the workers, and how long anything here may be silent."""
    try:
        workers = worker_health(db, socket.gethostname())
        limit = max(DAEMON_SECONDS, health_limit(db))
    except (psycopg.Error, PgPipelineError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        return [Finding("Postgres", said, "see that it runs, then pg-pipeline doctor")], DAEMON_SECONDS
    living = [_worker(worker) for worker in workers if _lives(worker)]
    return [Finding("Postgres", "answers"), *(living or [Finding("Workers", "none on this host")])], limit


def _worker(worker: WorkerHealth) -> Finding:
    said = f"silent for {worker.silent_seconds:.1f} s, of {worker.limit_seconds:.0f} s at most"
    stale = worker.silent_seconds > worker.limit_seconds
    return Finding(f"Worker {worker.name}", said, "restart it: others have its work by now" if stale else "")


def _lives(worker: WorkerHealth) -> bool:
    """Whether its process is there, and not another that has its number."""
    try:
        process = psutil.Process(int(worker.name.rpartition(":")[2]))
        return bool(process.create_time() <= worker.started_at.timestamp() and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, ValueError):
        return False


def _dagster(address: str, limit: float) -> Iterator[Finding]:
    try:
        answer = requests.post(f"{address}/graphql", json={"query": DAEMONS}, timeout=ANSWER_SECONDS)
        answer.raise_for_status()
        daemons: list[dict[str, Any]] = answer.json()["data"]["instance"]["daemonHealth"]["allDaemonStatuses"]
    except (requests.RequestException, KeyError, TypeError, ValueError) as error:
        yield Finding("Dagster", f"{address} does not answer ({type(error).__name__})", "restart pg-pipeline up")
        return
    yield Finding("Dagster", f"{address} answers")
    for daemon in daemons:
        if daemon["required"]:
            heard = daemon["lastHeartbeatTime"]
            silent = time.time() - heard if heard else None
            said = "not heard of yet" if silent is None else f"silent for {silent:.0f} s, of {limit:.0f} s at most"
            stale = silent is None or silent > limit
            yield Finding(f"Daemon {daemon['daemonType']}", said, "restart pg-pipeline up" if stale else "")
