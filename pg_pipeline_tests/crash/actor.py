"""A process to be killed: does one thing of the protocol, says what came of it, and ends.

python -m pg_pipeline_tests.crash.actor VERB DSN '{"json": "arguments"}'
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from pg_pipeline.coordination import dead_letters, executions, partitions, reaper, submission
from pg_pipeline.coordination.database import Database, dumps
from pg_pipeline.coordination.lease import CallbackResult, Lease
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.errors import LeaseLost
from pg_pipeline_tests.coordination.conftest import files

SINK = """
create table public.sink (execution text, generation int, batch int, path text);
create table public.discarded (token uuid)
"""


def say(what: str, value: Any = None) -> None:
    sys.stdout.write(f"{what} {dumps(value)}\n")
    sys.stdout.flush()


def a_worker(db: Database) -> Worker:
    """TEST_POOLED: the process comes through a transaction pooler."""
    return Worker(db, heartbeat_interval=0.05, pooled=bool(os.environ.get("TEST_POOLED")))


def process(worker: Worker, lease: Lease) -> None:
    """A batch: one row per file. A callback: a summary and a bill. Anything else: done."""
    if lease.kind == "callback":
        worker.finish(lease, CallbackResult(summary={"done": True}, outbox=[{"event": "bill"}]))
        return
    if lease.kind != "batch":
        worker.finish(lease)
        return
    worker.note_output(lease, "sink", {"table": "public.sink"})
    paths = [file.path for file in worker.files(lease)]

    def publish(conn: psycopg.Connection[Any]) -> None:
        """What an earlier generation shows goes; what the same one shows would be a doubled row, and stays."""
        conn.execute(
            "delete from public.sink where execution = %s and batch = %s and generation < %s",
            (lease.execution, lease.batch, lease.generation),
        )
        conn.cursor().executemany(
            "insert into public.sink values (%s, %s, %s, %s)",
            [(lease.execution, lease.generation, lease.batch, path) for path in paths],
        )

    worker.finish(lease, {"rows_in": len(paths)}, publish)


def drain(db: Database, *, limit: int = 2, tolerant: bool = False) -> int:
    """Work until nothing is left that could be claimed now."""
    done = 0
    with a_worker(db) as worker:
        while leases := worker.claim(limit):
            for lease in leases:
                say("lease", {"task_id": lease.task_id, "token": lease.token, "kind": lease.kind})
                try:
                    process(worker, lease)
                    done += 1
                except LeaseLost as error:
                    if not tolerant:
                        raise
                    say("lost", str(error))
    return done


def act(db: Database, verb: str, given: dict[str, Any]) -> Any:
    request_id = UUID(given.pop("request_id")) if "request_id" in given else None
    if "files" in given:
        given["files"] = files(given["files"], given.pop("prefix", "f"))
    match verb:
        case "submit":
            return submission.submit(db, "orders", given["files"], request_key=given["key"]).execution
        case "add":
            return submission.add(db, "orders", given["execution"], given["files"]).taken
        case "seal":
            return submission.seal(db, given["execution"]).state
        case "send":
            return [sent.task_id for sent in submission.send(db, "default", given["entries"])]
        case "drain":
            return drain(db, **given)
        case "fail" | "release":
            with a_worker(db) as worker:
                (lease,) = worker.claim()
                if verb == "release":
                    return worker.release(lease, "test")
                return worker.fail(lease, "boom", retryable=False).dead_letter
        case "replay":
            return dead_letters.replay(db, given["letter"], request_id=request_id)
        case "replay_many":
            return list(dead_letters.replay_many(db).replayed)
        case "discard":
            return dead_letters.discard(db, given["letter"], "test", request_id=request_id)
        case "cancel":
            return executions.cancel(db, given["execution"], "test", request_id=request_id)
        case "rerun":
            return executions.rerun(db, given["execution"], request_id=request_id)
        case "reap":
            return reaper.reap(db, lambda _sink, attempt, _location: note_discarded(db, attempt.token)).counts
        case "deliver":
            from pg_pipeline.coordination.outbox import Dispatcher

            return Dispatcher(db, allow_private=True).dispatch().delivered
        case "report":
            batches = partitions.unreported(db, ["orders"])
            partitions.mark_reported(db, batches)
            for summary in partitions.unreported_summaries(db, ["orders"]):
                partitions.mark_summary_reported(db, partitions.execution(db, summary))
            return len(batches)
        case "chain":
            with a_worker(db) as worker:
                leases = worker.claim()
                while leases:
                    _, leases = worker.finish_and_claim(leases[0])
            return None
        case "replace":
            return executions.replace_file(db, given["execution"], FileVersion(given["path"], "2", 20))
        case "prune":
            return executions.prune_ledger(db, "orders", datetime.fromisoformat(given["horizon"]))
        case "control":
            submission.configure_queue(db, "other", lease="7 s")
            submission.register_pipeline(db, "other", queue="other")
            with a_worker(db) as worker:
                assert worker.pin_schema("other", "{}") == "{}"
            executions.pause(db, "other", "test")
            return executions.resume(db, "other")
    raise AssertionError(verb)


def note_discarded(db: Database, token: UUID) -> None:
    db.rows("insert into public.discarded values (%s) returning 1", (token,))


if __name__ == "__main__":
    verb, dsn, arguments = sys.argv[1:]
    with Database(dsn) as database:
        say("answer", act(database, verb, json.loads(arguments)))
