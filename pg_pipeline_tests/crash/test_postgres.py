"""Postgres itself dies, restarts or ends a session, while workers hold leases: the living keep them."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import DatabaseUnreachable
from pg_pipeline_tests.coordination.conftest import audit, files
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.crash.recovery import go_on, outcomes, whole
from pg_pipeline_tests.helpers import ChildProcess, wait_until

GRACE = 0.3


@pytest.fixture(scope="module")
def own_server(session_dir: Path) -> Iterator[EmbeddedServer]:
    """A server that may be killed."""
    server = EmbeddedServer(session_dir / "mortal", linger=0)
    server.attach()
    migrate(server.dsn())
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(actor.SINK)
    yield server
    server.detach()
    wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")


@pytest.fixture
def mortal(own_server: EmbeddedServer, request: pytest.FixtureRequest) -> Iterator[Database]:
    with Database(own_server.dsn()) as database:
        submission.configure_queue(database, "default", lease="20 s", grace=f"{GRACE} s", breaker_after=0)
        submission.register_pipeline(database, "orders", batch_files=2)
        key = request.node.name
        submission.submit(database, "orders", files(2, key), request_key=key)
        yield database
        go_on(database)
        whole(database)


def kill_postmaster(server: EmbeddedServer) -> None:
    postmaster = server.postmaster()
    assert postmaster is not None
    postmaster.kill()
    postmaster.wait(timeout=30)


def kill_backend(server: EmbeddedServer) -> None:
    """One backend dies of SIGKILL: Postgres ends every session and recovers, under the same postmaster."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        os.kill(conn.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")


def restart_at_once(server: EmbeddedServer) -> None:
    postmaster = server.postmaster()
    assert postmaster is not None
    postmaster.send_signal(signal.SIGQUIT)  # as pg_ctl stop -m immediate does; the keeper starts it again
    postmaster.wait(timeout=30)


@pytest.mark.parametrize("die", [kill_postmaster, kill_backend, restart_at_once])
def test_a_restart_of_postgres_does_not_look_like_dead_workers(
    own_server: EmbeddedServer, mortal: Database, die: Callable[[EmbeddedServer], None]
) -> None:
    before = outcomes(mortal).get("lost", 0)
    with Worker(mortal, heartbeat_interval=0.1) as live, Worker(mortal, heartbeat_interval=0.1) as thief:
        (lease,) = live.claim()
        died = time.monotonic()
        die(own_server)
        # Long enough that everyone's last beat is older than the grace when Postgres is back.
        taken: list[Any] = []

        def keeps_beating() -> bool:
            try:
                taken.extend(thief.claim())
            except (psycopg.Error, DatabaseUnreachable):
                return False
            return live.last_beat > died + 4 * GRACE

        wait_until(keeps_beating, timeout=60, what="the worker to beat again")
        assert taken == []
        actor.process(live, lease)
    assert outcomes(mortal).get("lost", 0) == before
    assert audit(mortal) == []


def test_a_worker_that_died_with_postgres_is_missed_after_the_grace(
    own_server: EmbeddedServer, mortal: Database
) -> None:
    """The restart delays it, and no more."""
    orphan = Worker(mortal, heartbeat_interval=0.1)
    assert len(orphan.claim()) == 1
    orphan._heartbeat.stop()  # its process is gone, as far as Postgres can tell
    kill_backend(own_server)

    def back() -> Worker | None:
        try:
            return Worker(mortal, heartbeat_interval=0.1)
        except (psycopg.Error, DatabaseUnreachable):
            return None

    with wait_until(back, what="Postgres to be back") as next_one:
        (lease,) = wait_until(next_one.claim, what="the task to be taken over")
        actor.process(next_one, lease)


def test_ending_the_heartbeats_session_again_and_again_costs_no_lease(
    brisk: Database, submit: Any, worker: Callable[..., Worker]
) -> None:
    submit(2)
    live = worker(heartbeat_interval=0.05)
    (lease,) = live.claim()
    thief = worker(heartbeat_interval=0.05)
    ended = """select pg_terminate_backend(l.pid) from pipeline.worker w
               join pg_locks l on l.locktype = 'advisory' and l.classid = ((w.lock_key >> 32) & 4294967295)::oid
                 and l.objid = (w.lock_key & 4294967295)::oid
               where w.id = %s"""
    for _ in range(5):
        beaten = live.last_beat
        wait_until(lambda: brisk.rows(ended, (live.id,)), what="the heartbeat to hold its lock")
        wait_until(lambda b=beaten: live.last_beat > b + 0.2, what="the worker to beat again")
        assert thief.claim() == []
    actor.process(live, lease)
    assert outcomes(brisk) == {"committed": 1}


@pytest.mark.system("root", "unshare", "mount")
def test_a_disk_that_fills_under_load_costs_nothing_once_there_is_room(
    child: Callable[..., ChildProcess], tmp_path: Path
) -> None:
    """A file system of its own, gone with its processes. Transactions fail, and once Postgres is killed on the full
    disk; then room is made, and the work goes on."""
    script = 'mount -t tmpfs -o size=300m,mode=700 none "$1" && exec "$2" -m pg_pipeline_tests.crash.full_disk "$1"'
    process = child(command=("unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable))
    assert process.wait(600) == 0, (process.stdout, process.stderr)
    assert "rows" in process.stdout
