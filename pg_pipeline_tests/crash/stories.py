"""What each failpoint interrupts: how to get there, who is killed, and what is asked again afterwards."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.coordination.conftest import files
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.crash.recovery import go_on, paths, whole
from pg_pipeline_tests.helpers import PROJECT

Given = dict[str, Any]
ENTRIES = [{"key": key, "kind": "job"} for key in "abc"]
# Called inside a transaction or on the heartbeat's connection, where named points stand around them.
INSIDE = {"open_execution", "add_files", "lock_ledger", "lock_leases", "finish", "beat", "register_worker", "compact"}
# They change nothing, and are volatile only because they look at the clock, or at tables that are compacted.
READS = {
    "audit",
    "batch_places",
    "callback_holder",
    "dead_letter_news",
    "depth",
    "explain",
    "metrics",
    "quarantine_news",
    "run_lives",
    "unreported_batches",
    "unreported_summaries",
    "waiting_callbacks",
    "worker_health",
}
CALLED = re.compile(r"pipeline\.(\w+)\(")


def points_in_source(db: Database) -> set[str]:
    """Every failpoint that there is: named in the source, or around a call that can change something."""
    named: set[str] = set()
    called: set[str] = set()
    for path in (PROJECT / "pg_pipeline" / "coordination").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.hit":
                named.add(ast.literal_eval(node.args[0]))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                called.update(CALLED.findall(node.value))
    writing = db.rows(
        """select proname from pg_proc
           where pronamespace = 'pipeline'::regnamespace and provolatile = 'v' and proname = any(%s)""",
        (sorted(called - INSIDE - READS),),
    )
    around = {f"{row['proname']}.{when}" for row in writing for when in ("before_call", "after_commit")}
    return named | around


@dataclass(frozen=True)
class Story:
    """`prepare` gives what the process is asked, given a webhook's address; `ask_again` is the client that never got
    its answer."""

    verb: str
    points: tuple[str, ...]
    prepare: Callable[[Database, str], Given] = lambda _db, _url: {}
    ask_again: Callable[[Database, Given], None] = lambda _db, _given: None
    check: Callable[[Database], None] = whole


def around(*functions: str) -> tuple[str, ...]:
    return tuple(f"{name}.{when}" for name in functions for when in ("before_call", "after_commit"))


def submitted(db: Database, *, seal: bool = True) -> str:
    return submission.submit(db, "orders", files(6), request_key="k", seal=seal).execution


def opened(db: Database, _url: str) -> Given:
    return {"execution": submitted(db, seal=False)}


def ready(db: Database, _url: str) -> Given:
    submitted(db)
    return {}


def dead(db: Database, _url: str) -> Given:
    submitted(db)
    return {"letter": actor.act(db, "fail", {}), "request_id": str(uuid4())}


def running(db: Database, _url: str) -> Given:
    return {"execution": submitted(db), "request_id": str(uuid4())}


def finished(db: Database, _url: str) -> Given:
    execution = submitted(db)
    actor.drain(db)
    return {"execution": execution, "request_id": str(uuid4())}


def orphaned(db: Database, _url: str) -> Given:
    """An attempt that wrote somewhere and then failed."""
    submitted(db)
    with actor.Worker(db) as worker:
        (lease,) = worker.claim()
        worker.note_output(lease, "sink", {})
        worker.fail(lease, "boom")
    return {}


def notified(db: Database, url: str) -> Given:
    submission.register_pipeline(db, "orders", batch_files=2, notify=[url])
    finished(db, url)
    return {}


def sent(db: Database, _url: str) -> Given:
    actor.act(db, "send", {"entries": ENTRIES})
    return {}


def quarantined(db: Database, _url: str) -> Given:
    execution = submission.submit(db, "orders", files(2), request_key="k").execution
    with actor.Worker(db) as worker:
        (lease,) = worker.claim()
        worker.finish(lease, {"quarantined": [{"ordinal": 0, "reason": "corrupt"}]})
    actor.drain(db)
    return {"execution": execution, "path": files(1)[0].path}


def aged(db: Database, _url: str) -> Given:
    """Files of long ago, all of them done."""
    old = [replace(file, modified_at=datetime(2001, 1, 1, tzinfo=UTC)) for file in files(6)]
    submission.submit(db, "orders", old, request_key="k")
    actor.drain(db)
    return {"horizon": db.value("select now()").isoformat()}


def same(verb: str) -> Callable[[Database, Given], None]:
    """The same request gets the first answer, however often it is asked."""

    def ask(db: Database, given: Given) -> None:
        assert actor.act(db, verb, dict(given)) == actor.act(db, verb, dict(given))

    return ask


def sealed(db: Database, given: Given) -> None:
    added = dict(given, files=3, prefix="more")
    assert actor.act(db, "add", dict(added)) == 9
    submission.seal(db, given["execution"])


def replayed(db: Database, _given: Given) -> None:
    actor.act(db, "replay_many", {})


def discarded(db: Database) -> None:
    assert len(paths(db, "discarded")) == 2
    whole(db)


def cancelled(db: Database) -> None:
    assert len(paths(db, "released")) == 6
    whole(db, state="cancelled")


def second_generation(db: Database) -> None:
    assert db.rows("select distinct generation from public.sink") == [{"generation": 2}]
    whole(db)


def reaped(db: Database) -> None:
    actor.act(db, "reap", {})
    assert db.rows("select token from pipeline.attempt_output") == []
    assert db.value("select count(distinct token) from public.discarded") == 1
    whole(db)


def delivered(db: Database) -> None:
    """A dispatcher that died holds its rows for a while; then another delivers them."""
    db.rows("update pipeline.outbox set leased_until = now(), next_at = now() where destination <> '' returning 1")
    actor.act(db, "deliver", {})
    assert db.rows("select state from pipeline.outbox where destination <> ''") == [{"state": "delivered"}]
    whole(db)


def reported(db: Database) -> None:
    assert actor.act(db, "report", {}) == 0
    whole(db)


def replaced(db: Database, given: Given) -> None:
    same("replace")(db, given)
    executions.rerun(db, given["execution"])


def mended(db: Database) -> None:
    assert db.rows("select version from pipeline.file order by ordinal") == [{"version": "2"}, {"version": "1"}]
    whole(db)


def pruned(db: Database) -> None:
    """Forgotten whole, and refused from then on."""
    assert [db.value(f"select count(*) from pipeline.{table}") for table in ("execution", "file", "batch")] == [0, 0, 0]
    old = [replace(file, modified_at=datetime(2001, 1, 1, tzinfo=UTC)) for file in files(6)]
    assert submission.submit(db, "orders", old, request_key="k").left_out == {"too_old": 6}


def three_tasks(db: Database) -> None:
    done = db.rows("select key from pipeline.receipt order by key")
    assert [row["key"] for row in done] == ["a", "b", "c"]
    assert db.value("select count(*) from pipeline.attempt where outcome = 'committed'") == 3


def controlled(db: Database) -> None:
    (queue,) = [row for row in executions.queues(db) if row["queue"] == "other"]
    assert queue["paused_at"] is None
    assert db.value("select queue from pipeline.pipeline where name = 'other'") == "other"


STORIES = (
    Story(
        "submit",
        ("submit.after_files", "submit.before_commit", "submit.after_commit"),
        lambda _db, _url: {"files": 6, "key": "k"},
        same("submit"),
    ),
    Story(
        "add",
        ("add.before_commit", "add.after_commit"),
        lambda db, url: {**opened(db, url), "files": 3, "prefix": "more"},
        sealed,
    ),
    Story("seal", around("seal"), opened, same("seal")),
    Story("send", around("send"), lambda _db, _url: {"entries": ENTRIES}, same("send"), three_tasks),
    Story(
        "drain",
        (
            "worker.registered",
            "heartbeat.before_beat",
            "heartbeat.after_beat",
            "finish.after_lock",
            "finish.after_publish",
            "finish.before_commit",
            "finish.after_commit",
            *around("claim", "note_output", "stop_worker"),
        ),
        ready,
    ),
    # The same points once more, in the callback: the fourth of four tasks.
    Story(
        "drain",
        ("finish.after_lock:4", "finish.before_commit:4", "finish.after_commit:4", "claim.after_commit:3"),
        ready,
    ),
    Story("fail", around("fail"), ready, replayed),
    Story("release", around("release"), ready),
    Story("chain", around("finish_and_claim"), sent, check=three_tasks),
    Story("replace", around("replace_file"), quarantined, replaced, mended),
    Story("prune", around("prune_ledger"), aged, lambda db, given: actor.act(db, "prune", dict(given)), pruned),
    Story("replay", around("replay"), dead, same("replay")),
    Story("replay_many", around("replay_many"), dead, replayed),
    Story("discard", around("discard"), dead, same("discard"), discarded),
    Story("cancel", around("cancel"), running, same("cancel"), cancelled),
    Story("rerun", around("rerun"), finished, same("rerun"), second_generation),
    Story("reap", (*around("reap", "forget_output"), "reaper.after_discard"), orphaned, check=reaped),
    Story("deliver", (*around("claim_outbox", "settle_outbox"), "outbox.after_send"), notified, check=delivered),
    Story(
        "report",
        around("mark_reported", "mark_summary_reported"),
        finished,
        lambda db, _given: actor.act(db, "report", {}),
        reported,
    ),
    Story(
        "control",
        around("configure_queue", "register_pipeline", "pin_schema", "pause", "resume"),
        ask_again=same("control"),
        check=controlled,
    ),
)

# Killed in tests of their own, where there is no migrated database yet.
ELSEWHERE = {"migration.before_commit", "migration.after_commit"}

BY_POINT: Mapping[str, Story] = {point: story for story in STORIES for point in story.points}


def recover(db: Database, story: Story, given: Given) -> None:
    story.ask_again(db, given)
    go_on(db)
    story.check(db)
