"""A streaming replica answers every command that only looks, and says of itself that it can't be written to."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from typer.testing import CliRunner

from pg_pipeline.cli.main import app
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.embedded.account import server_account
from pg_pipeline.embedded.cluster import run_program
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.conftest import POSTGRES_VERSION
from pg_pipeline_tests.coordination.conftest import HandWorker, files
from pg_pipeline_tests.helpers import wait_until

NOWHERE = "host=/nowhere dbname=none"


@pytest.fixture(scope="module")
def primary(session_dir: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(session_dir / "primary", version=POSTGRES_VERSION, linger=0)
    server.attach()
    with (server.data / "pg_hba.conf").open("a") as access:
        access.write("local replication all trust\n")
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("select pg_reload_conf()")
    migrate(server.dsn())
    yield server
    server.detach()
    wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")


@pytest.fixture(scope="module")
def replica(primary: EmbeddedServer, session_dir: Path) -> Iterator[str]:
    account, folder = server_account(), session_dir / "replica"
    folder.mkdir(mode=0o700)
    os.chown(folder, account.uid, account.gid)
    data, socket = folder / "data", primary.socket_dir

    def run(program: str, *arguments: str) -> None:
        run_program(account, POSTGRES_VERSION, program, *arguments)

    run("pg_basebackup", "--host", str(socket), "--username", "postgres", "--pgdata", str(data), "--checkpoint", "fast",
        "--write-recovery-conf")  # fmt: skip
    run("pg_ctl", "start", "--silent", "--wait", "--pgdata", str(data), "--log", str(folder / "log"),
        "--options", f"-k {folder}")  # fmt: skip
    yield f"postgresql://postgres@/pg_pipeline?host={quote(str(folder), safe='')}"
    run("pg_ctl", "stop", "--silent", "--wait", "--mode", "immediate", "--pgdata", str(data))
    shutil.rmtree(folder)


def caught_up(primary: EmbeddedServer, replica: str) -> None:
    with psycopg.connect(primary.dsn()) as conn, psycopg.connect(replica, autocommit=True) as other:
        at = conn.execute("select pg_current_wal_lsn()").fetchone()
        assert at is not None
        wait_until(
            lambda: other.execute("select pg_last_wal_replay_lsn() >= %s", at).fetchone() == (True,),
            what="the replica to come so far",
        )


def asked(monkeypatch: pytest.MonkeyPatch, dsn: str, read_dsn: str, *command: str) -> str:
    monkeypatch.setenv("PG_PIPELINE_DSN", dsn)
    monkeypatch.setenv("PG_PIPELINE_READ_DSN", read_dsn)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, (command, done.output, done.exception)
    return done.output


def test_every_command_that_only_looks_asks_the_replica(
    primary: EmbeddedServer, replica: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Database(primary.dsn()) as db:
        submission.configure_queue(db, "default", lease="1 day", grace="1 hour")  # no worker is late by itself
        submission.register_pipeline(db, "orders", batch_files=2)
        execution = submission.submit(db, "orders", files(6), request_key="k").execution
        worker = HandWorker(db)
        first, second = worker.claim(2)
        worker.finish(first, result={"rows_in": 1, "rows_out": 1, "quarantined": [{"ordinal": 0, "reason": "bad"}]})
        worker.fail(second, retryable=False)
        worker.claim(1)  # and leased it stays
        caught_up(primary, replica)

        (letter,) = db.rows("select id from pipeline.dead_letter")
        looks: list[tuple[str, ...]] = [
            *(("executions",), ("explain", execution), ("attempts", execution), ("audit",), ("queue", "list")),
            *(("dlq", "list"), ("dlq", "show", str(letter["id"])), ("quarantine", "list", execution), ("status",)),
            ("quarantine", "show", execution, files(1)[0].path),
        ]
        for look in looks:
            there = json.loads(asked(monkeypatch, NOWHERE, replica, *look, "--json"))
            here = json.loads(asked(monkeypatch, primary.dsn(), "", *look, "--json"))
            assert there == here, look
            assert there or look == ("audit",), look
        assert re.search(r'pg_pipeline_executions\{.*"blocked"\} 1', asked(monkeypatch, NOWHERE, replica, "metrics"))
        page = tmp_path / "report.html"
        asked(monkeypatch, NOWHERE, replica, "report", execution, "--output", str(page))
        assert execution in page.read_text()


def test_a_replica_that_is_to_be_changed_says_what_it_is(program: Program, replica: str) -> None:
    done: Any = program("queue", "pause", "default", "--reason", "x", code=1, PG_PIPELINE_DSN=replica)
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: This Postgres is a replica and takes no change (")
    assert line.endswith("set PG_PIPELINE_DSN to the primary.")
