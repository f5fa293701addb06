"""A steady load through faults: tasks at a given rate for minutes while workers and sessions are killed at random.

python -m pg_pipeline_tests.storm.load [--seconds 180] [--rate 500] [--workers 4] [--seed 7] [--record]

Each task's effect is a row of a table that would take any number of them. What was sent is known here, in plain Python;
afterwards every key must have had its effect exactly once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish, Lease
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import DatabaseUnreachable, LeaseLost, WorkerUnknown
from pg_pipeline_tests.helpers import wait_until

RESULTS = Path(__file__).with_name("load.jsonl")
CLAIM = 25
WEATHER = (psycopg.OperationalError, DatabaseUnreachable, LeaseLost, WorkerUnknown)
END_A_SESSION = """
select pg_terminate_backend(pid) from (
  select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
  order by random() limit 1
) s
"""


@dataclass
class Load:
    """What was asked, what was done to it, and what came out."""

    seed: int
    seconds: float
    rate: int
    workers: int
    sent: int = 0
    kills: int = 0
    sessions_ended: int = 0
    attempts_lost: int = 0
    done_per_second: float = 0.0
    wait_p50_ms: float = 0.0
    wait_p99_ms: float = 0.0
    rest_seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.sent} tasks in {self.seconds:.0f} s to {self.workers} workers, {self.kills} "
            f"killed, {self.sessions_ended} sessions ended, {self.attempts_lost} attempts lost; "
            f"{self.done_per_second:.0f} done a second, waited {self.wait_p50_ms:.0f} ms (p50), "
            f"{self.wait_p99_ms:.0f} ms (p99); {'; '.join(self.wrong) or 'nothing lost, nothing doubled, audit clean'}"
        )


def work(dsn: str) -> None:
    """A worker process: takes, does, and settles with its effects, until it is killed."""
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            with Database(dsn, timeout=5) as db, Worker(db, kinds=["load"], heartbeat_interval=0.2) as one:
                while os.getppid() == parent:
                    leases = one.claim_or_wait(CLAIM, timeout=0.5, poll=0.1)
                    if leases:
                        time.sleep(0.03)  # the work, in which it may be killed
                        one.finish_many([Finish(lease, None, _effect(lease)) for lease in leases])
        except WEATHER:
            time.sleep(0.05)


def _effect(lease: Lease) -> Any:
    def publish(conn: psycopg.Connection[Any]) -> None:
        conn.execute("insert into public.effect values (%s, %s)", (lease.payload["key"], lease.payload["at"]))

    return publish


def run(folder: Path, asked: Load) -> Load:
    chance = random.Random(asked.seed)
    server = EmbeddedServer(folder / "postgres", linger=0)
    server.attach()
    dsn = server.dsn()
    crew: list[subprocess.Popen[bytes]] = []
    try:
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("create table public.effect (key text, at float8, done timestamptz default clock_timestamp())")
        with Database(dsn) as db:
            submission.configure_queue(
                db, "default", lease="2 s", grace="500 ms", max_attempts=50, backoff_base="50 ms", breaker_after=0
            )
        crew += [_start(dsn) for _ in range(asked.workers)]
        keys = _rage(dsn, asked, crew, chance)
        began = time.monotonic()
        with Database(dsn) as db:
            left = "select count(*) from pipeline.task"
            wait_until(lambda: db.value(left) == 0, timeout=300, what="every task to be done after the load")
            asked.rest_seconds = round(time.monotonic() - began, 1)
            _judge(db, asked, keys)
    finally:
        for one in crew:
            one.kill()
            one.wait()
        server.detach()
        wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")
    return asked


def _start(dsn: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "pg_pipeline_tests.storm.load", "--work", dsn])


def _rage(dsn: str, asked: Load, crew: list[subprocess.Popen[bytes]], chance: random.Random) -> list[str]:
    """Sends at the rate, and strikes about once in two seconds."""
    keys: list[str] = []
    began = time.monotonic()
    strike = began + 3
    with Database(dsn, timeout=5) as db:
        while (now := time.monotonic() - began) < asked.seconds:
            due = int(now * asked.rate) - len(keys)
            if due:
                fresh = [f"task {len(keys) + n}" for n in range(due)]
                _send(db, fresh)
                keys += fresh
            if time.monotonic() > strike:
                _strike(db, dsn, asked, crew, chance)
                strike = time.monotonic() + chance.uniform(0.5, 3.5)
            time.sleep(0.05)
    asked.sent = len(keys)
    return keys


def _send(db: Database, keys: list[str]) -> None:
    """Until it is answered: asking twice is asking once."""
    at = time.time()
    entries = [{"key": key, "kind": "load", "payload": {"key": key, "at": at}} for key in keys]
    while True:
        try:
            outcomes = submission.send(db, "default", entries)
        except WEATHER:
            continue
        assert {one.outcome for one in outcomes} <= {"created", "duplicate"}, outcomes
        return


def _strike(db: Database, dsn: str, asked: Load, crew: list[subprocess.Popen[bytes]], chance: random.Random) -> None:
    if chance.random() < 0.3:
        try:
            db.rows(END_A_SESSION)
        except WEATHER:
            return
        asked.sessions_ended += 1
        return
    number = chance.randrange(len(crew))
    crew[number].kill()
    crew[number].wait()
    crew[number] = _start(dsn)
    asked.kills += 1


def _judge(db: Database, asked: Load, keys: list[str]) -> None:
    rows = db.rows(
        "select key, extract(epoch from done) - at as waited, extract(epoch from done) as done from public.effect"
    )
    effects = Counter(row["key"] for row in rows)
    wanted = Counter(keys)
    for what, difference in (("lost", wanted - effects), ("doubled", effects - wanted)):
        if difference:
            asked.wrong.append(f"{difference.total()} effects {what}, such as {difference.most_common(3)}")
    asked.wrong += [f"audit: {violation}" for violation in executions.audit(db)]
    dead = db.value("select count(*) from pipeline.dead_letter")
    if dead:
        asked.wrong.append(f"{dead} dead letters")
    asked.attempts_lost = db.value("select count(*) from pipeline.attempt where outcome in ('lost', 'fenced')")
    waits = sorted(float(row["waited"]) * 1000 for row in rows)
    asked.wait_p50_ms = round(statistics.median(waits), 1)
    asked.wait_p99_ms = round(waits[int(len(waits) * 0.99)], 1)
    done = [float(row["done"]) for row in rows]
    asked.done_per_second = round(len(rows) / max(max(done) - min(done), 1), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="A steady load through faults; then each effect is counted.")
    parser.add_argument("--work", metavar="DSN", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rate", type=int, default=500, help="tasks a second")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="which strikes; new ones by default, printed")
    parser.add_argument("--record", action="store_true", help="keep the result for docs/reliability.md")
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return 0
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="pgp-") as folder:
        load = run(Path(folder), Load(seed, given.seconds, given.rate, given.workers))
    print(load)
    if given.record:
        with RESULTS.open("a") as results:
            results.write(json.dumps(asdict(load)) + "\n")
    return 1 if load.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
