"""The processes of a storm. Each does its part until it is killed or told to stop, and may die at any instruction."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from pg_pipeline.coordination import dead_letters, executions, failpoints, reaper, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import CallbackResult, Lease
from pg_pipeline.coordination.outbox import Dispatcher
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import DatabaseUnreachable, LeaseLost, NotFound, WorkerUnknown, WrongState

PLAIN, SPARK = "plain", "spark"
SINK = """
create table public.plain (execution text, batch int, order_id bigint, amount numeric);
create index on public.plain (execution, batch);
create table public.receiver (url text)
"""
# What may happen to a process when Postgres dies under it; anything else is a defect, and ends the storm red.
WEATHER = (psycopg.OperationalError, DatabaseUnreachable, LeaseLost, WorkerUnknown)

_stop = threading.Event()


def run(role: str, dsn: str, given: dict[str, Any], log: str) -> None:
    """The entry of every process: `role` until it is told to stop (SIGTERM), through whatever Postgres does."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    failpoints.arm(given.get("failpoint"))
    chance = random.Random(given["seed"])
    server = EmbeddedServer(Path(given["server"]), linger=0)
    try:
        while not _stop.is_set():
            try:
                server.attach()  # as every process does first: it brings back Postgres or its keeper
                with Database(dsn, timeout=5) as db:
                    _ROLES[role](db, chance, given)
            except WEATHER:
                _stop.wait(0.05)  # as any client: not at once
    except BaseException:  # noqa: BLE001 - whatever it is, it is a defect, and is shown
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _end_with(parent: int) -> None:
    """A storm that is killed leaves nobody behind."""
    while os.getppid() == parent:
        threading.Event().wait(1)
    os._exit(0)


def submitter(db: Database, _chance: random.Random, given: dict[str, Any]) -> None:
    """Asks for every delivery that was landed, again and again: asking twice is asking once."""
    landed = Path(given["deliveries"])
    for line in landed.read_text().splitlines():
        delivery = json.loads(line)
        if _stop.is_set():
            return
        files = [FileVersion(path, "1", Path(path).stat().st_size) for path in delivery["paths"]]
        submission.submit(db, delivery["pipeline"], files, request_key=delivery["key"])
    _stop.wait(0.05)


def worker(db: Database, chance: random.Random, _given: dict[str, Any]) -> None:
    with Worker(db, pipelines=[PLAIN], heartbeat_interval=0.1) as one:
        while not _stop.is_set():
            for lease in one.claim_or_wait(chance.randint(1, 3), timeout=0.2, poll=0.1):
                try:
                    if chance.random() < 0.03:
                        one.fail(lease, "bad luck", retryable=chance.random() < 0.7)
                    else:
                        _work(one, lease, chance.uniform(0, 0.25))
                except LeaseLost:
                    continue


def _work(one: Worker, lease: Lease, seconds: float) -> None:
    if lease.kind == "callback":
        # Nothing changes the rows of a generation whose barrier is at zero.
        (bill,) = one._db.rows(
            """select r.url, %s as execution, count(p.*) as rows, coalesce(sum(p.amount), 0)::text as total
               from public.receiver r left join public.plain p on p.execution = %s group by r.url""",
            (lease.execution, lease.execution),
        )
        one.finish(lease, CallbackResult(bill, [{"event": "bill", "destination": bill["url"], "payload": bill}]))
        return
    one.note_output(lease, PLAIN, {})
    rows, quarantined = [], []
    for file in one.files(lease):
        try:
            orders = [json.loads(line) for line in Path(file.path).read_text().splitlines()]
        except ValueError:
            quarantined.append({"ordinal": file.ordinal, "reason": "corrupt"})
            continue
        rows += [(order["order_id"], str(order["amount"])) for order in orders if order["amount"] > 0]

    _stop.wait(seconds)  # so that there is something to be killed in

    def publish(conn: psycopg.Connection[Any]) -> None:
        """What the batch showed before goes, in any generation but this one: there a second publish would double."""
        if (lease.generation or 1) > 1:
            conn.execute("delete from public.plain where execution = %s and batch = %s", (lease.execution, lease.batch))
        conn.cursor().executemany(
            "insert into public.plain values (%s, %s, %s, %s)",
            [(lease.execution, lease.batch, *row) for row in rows],
        )

    one.finish(lease, {"rows_in": len(rows), "rows_out": len(rows), "quarantined": quarantined}, publish)


def janitor(db: Database, chance: random.Random, given: dict[str, Any]) -> None:
    """The recovery, which is killed too: reaps, replays, delivers, and at times runs something again or cancels it."""
    dispatcher = Dispatcher(db, timeout=1, allow_private=True)
    while not _stop.is_set():
        reaper.reap(db, lambda *_: None)
        dead_letters.replay_many(db)
        with suppress(WrongState, NotFound):  # another janitor was first
            dice = chance.random() if given["meddle"] else 1.0
            if dice < 0.4:
                _meddle(db, chance, "finished", executions.rerun)
            elif dice < 0.5:
                _meddle(db, chance, "sealed", lambda db, key: executions.cancel(db, key, "the weather"))
        while dispatcher.dispatch(limit=2).delivered:
            pass
        _stop.wait(0.05)


def _meddle(db: Database, chance: random.Random, state: str, what: Callable[[Database, str], Any]) -> None:
    found = db.rows(
        "select key from pipeline.execution where state = %s and pipeline = %s order by id desc limit 20",
        (state, PLAIN),
    )
    if found:
        what(db, chance.choice(found)["key"])


def spark_worker(db: Database, _chance: random.Random, given: dict[str, Any]) -> None:
    """The worker of production, with its Spark session in this process."""
    from pg_pipeline.assets.work import Bench, drain
    from pg_pipeline.embedded.java import ensure_java
    from pg_pipeline.pipelines import FilePipeline
    from pg_pipeline.sinks.postgres import PostgresTable
    from pg_pipeline.spark.session import session

    ensure_java()
    pipeline = spark_pipeline(FilePipeline, PostgresTable)
    made: list[Bench] = []
    with Worker(
        db, SPARK, pipelines=[SPARK], heartbeat_interval=0.2, on_lost=lambda lease, why: made[0].lost(lease, why)
    ) as one:
        made.append(
            Bench(one, {SPARK: pipeline}, lambda: session({"spark.ui.enabled": False}, master="local[2]"), given["dsn"])
        )
        for _ in drain(made[0], slots=1, linger=1e9):
            if _stop.is_set():
                return


def spark_pipeline(make: Callable[..., Any], table: Callable[[str], Any]) -> Any:
    return make(
        name=SPARK,
        format="json",
        schema="order_id long, amount decimal(12,2)",
        sink=table("public.spark_orders"),
        transform=lambda df, _batch: df.where("amount > 0"),
        queue=SPARK,
        batch_files=3,
    )


_ROLES: dict[str, Callable[[Database, random.Random, dict[str, Any]], None]] = {
    "submitter": submitter,
    "worker": worker,
    "janitor": janitor,
    "spark": spark_worker,
}


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4])
