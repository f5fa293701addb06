"""What a person asks and does, with the real program: status, executions, dead letters, quarantine, queues."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pg_pipeline.cli import shapes
from pg_pipeline.coordination import dead_letters, executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.pipelines import landing
from pg_pipeline.pipelines.orders import orders
from pg_pipeline_tests.cli.conftest import Program
from pg_pipeline_tests.coordination.conftest import HandWorker, files
from pg_pipeline_tests.helpers import ChildProcess

EVIL = "/in/\x1b]0;owned\x07[red]x[/red]\u202e.json"


def submitted(db: Database, count: int = 4, key: str = "k") -> str:
    return submission.submit(db, "orders", files(count, prefix=key), request_key=key).execution


def finished(db: Database, hand: HandWorker, key: str = "k", *, bad: bool = False) -> str:
    """An execution of two batches, worked on to its end; `bad` quarantines a file of batch 1."""
    execution = submitted(db, 4, key)
    for lease in hand.claim(10):
        spoilt = bad and lease["batch"] == 1
        aside = [{"ordinal": 0, "reason": "corrupt", "detail": "cut short"}] if spoilt else []
        hand.finish(lease, result={"rows_in": 5, "rows_out": 5, "quarantined": aside})
    hand.finish(*hand.claim(1), result={"summary": {"n": 10}})
    return execution


def died(db: Database, hand: HandWorker, error: str = "boom", key: str = "k") -> tuple[str, int]:
    execution = submitted(db, 2, key)
    hand.fail(hand.claim(1)[0], retryable=False, error=error)
    return execution, dead_letters.listed(db)[-1]["id"]


def test_executions_explain_attempts_and_their_shapes(program: Program, asked: Any, db: Database, hand: Any) -> None:
    execution = finished(db, hand, bad=True)
    (row,) = asked("executions", "--pipeline", "orders", "--status", "finished")
    assert list(row) == list(shapes.EXECUTION)
    assert (row["execution"], row["rows_out"], row["quarantined"], row["summary"]) == (execution, 10, 1, {"n": 10})
    assert execution in program("executions").stdout

    attempts = asked("attempts", execution)
    assert [list(one) for one in attempts] == [list(shapes.ATTEMPT)] * 3
    assert {one["outcome"] for one in attempts} == {"committed"}
    assert program("attempts", execution).stdout.count("committed") == 3

    reasons = asked("explain", execution)
    assert [list(one) for one in reasons] == [list(shapes.REASON)] * len(reasons)
    assert reasons[0]["what"] == "state"
    assert "→ look: pg-pipeline quarantine list" in program("explain", execution).stdout
    for command in ("explain", "attempts", "audit"):
        missing = program(command, "20200101-0000", code=1)
        assert "execution 20200101-0000 not found" in missing.stderr
        assert len(missing.stderr.splitlines()) == 1


@pytest.mark.plants_violations
def test_audit_exits_3_where_a_promise_is_broken(
    program: Program, asked: Any, db: Database, hand: HandWorker, conn: psycopg.Connection[Any]
) -> None:
    execution = finished(db, hand)
    assert "Clean" in program("audit").stdout
    assert asked("audit", execution) == []
    conn.execute("update pipeline.execution set settled = settled - 1")
    (violation,) = asked("audit", execution, code=3)
    assert list(violation) == list(shapes.VIOLATION)
    assert violation["promise"] == "P4"
    assert "batches remain" in program("audit", code=3).stdout


def test_rerun_replaces_and_is_resumable(program: Program, asked: Any, db: Database, hand: HandWorker) -> None:
    first, second = finished(db, hand, "a"), finished(db, hand, "b")
    refused = program("rerun", first, code=2)
    assert "nothing was done: add --yes" in refused.stderr
    assert executions.get(db, first)["generation"] == 1

    (one,) = asked("rerun", first, "--batch", "1", "--yes")
    assert list(one) == list(shapes.RERUN)
    assert (one["outcome"], one["generation"], one["batches"]) == ("re-run", 2, 1)
    assert asked("rerun", first, "--batch", "1", "--yes")[0]["outcome"] == "asked before"
    hand.finish(*hand.claim(5))
    hand.finish(*hand.claim(5))

    # The round over both is cut short after the first; the same command goes on and repeats nothing.
    program("rerun", first, "--request-key", "orders since 1d", "--yes")
    hand.finish(*hand.claim(5))
    hand.finish(*hand.claim(5))
    answers = asked("rerun", "--pipeline", "orders", "--since", "1d", "--yes")
    assert [(a["execution"], a["outcome"], a["generation"]) for a in answers] == [
        (first, "asked before", 3),
        (second, "re-run", 2),
    ]
    assert "only a finished one can be re-run" in program("rerun", second, "--batch", "0", "--yes", code=1).stderr
    assert "is no time" in program("rerun", "--pipeline", "orders", "--since", "soon", code=1).stderr


def test_cancel_asks_first(program: Program, db: Database) -> None:
    execution = submitted(db)
    assert "add --yes" in program("cancel", execution, "--reason", "no", code=2).stderr
    assert executions.get(db, execution)["status"] == "sealed"
    assert "is cancelled" in program("cancel", execution, "--reason", "no", "--yes").stdout
    assert executions.get(db, execution)["ended_reason"] == "no"
    assert "is cancelled already" in program("cancel", execution, "--reason", "no", "--yes", code=1).stderr


def test_dead_letters_are_shown_replayed_and_discarded(
    program: Program, asked: Any, db: Database, hand: HandWorker
) -> None:
    execution, letter = died(db, hand)
    (row,) = asked("dlq", "list", "--execution", execution)
    assert list(row) == list(shapes.LETTER)
    assert "boom" in program("dlq", "list").stdout
    whole = asked("dlq", "show", str(letter))
    assert list(whole) == list(shapes.LETTER_WHOLE)
    assert len(whole["files"]) == 2
    assert "attempt 1: failed" in program("dlq", "show", str(letter)).stdout

    assert asked("dlq", "replay", str(letter)) == {"replayed": [letter], "refused": []}
    assert f"dead letter {letter} not found" in program("dlq", "replay", str(letter), code=1).stderr
    hand.fail(hand.claim(1)[0], retryable=False)
    assert "Replayed 1" in program("dlq", "replay", "--all", "--pipeline", "orders").stdout
    hand.fail(hand.claim(1)[0], retryable=False)
    last = str(dead_letters.listed(db)[0]["id"])
    assert "add --yes" in program("dlq", "discard", last, "--why", "junk", code=2).stderr
    assert "is discarded" in program("dlq", "discard", last, "--why", "junk", "--yes").stdout
    assert dead_letters.show(db, int(last))["resolved_why"] == "junk"
    assert program("dlq", "list").stdout == "No dead letters wait.\n"


def test_quarantine_is_listed_shown_and_replayed(program: Program, asked: Any, db: Database, hand: HandWorker) -> None:
    execution = finished(db, hand, bad=True)
    (row,) = asked("quarantine", "list", execution)
    assert list(row) == list(shapes.QUARANTINED)
    assert row["reason"] == "corrupt"
    assert row["path"] in program("quarantine", "list").stdout
    assert "detail: cut short" in program("quarantine", "show", execution, row["path"]).stdout
    (answer,) = asked("quarantine", "replay", execution, "--yes")
    assert (answer["generation"], answer["batches"]) == (2, 1)
    (lease,) = hand.claim(5)
    assert lease["batch"] == 1
    hand.finish(lease)
    hand.finish(*hand.claim(1))
    assert "No files are in quarantine." in program("quarantine", "list").stdout
    assert "no such batch" in program("quarantine", "replay", execution, "--yes", code=1).stderr


def test_a_mended_file_takes_the_quarantined_ones_place(
    asked: Any, db: Database, hand: HandWorker, landed: Path
) -> None:
    path = landed / "o.json"
    path.write_text('{"order')
    (old,) = landing.under(orders, [str(path)])
    execution = submission.submit(db, "orders", [old], request_key="k").execution
    hand.finish(*hand.claim(1), result={"quarantined": [{"ordinal": 0, "reason": "corrupt"}]})
    hand.finish(*hand.claim(1))
    path.write_text('{"order_id": 1}')
    (answer,) = asked("quarantine", "replay", execution, "--yes")
    assert answer["outcome"] == "re-run"
    (file,) = db.rows("select version, size from pipeline.file")
    assert file["version"] != old.version
    assert file["size"] == path.stat().st_size


def test_queues_and_status(program: Program, asked: Any, db: Database, hand: HandWorker) -> None:
    submitted(db)
    hand.claim(1)
    died(db, hand, key="d")
    now = asked("status")
    assert list(now) == list(shapes.STATUS)
    for name, shape in (
        ("queues", shapes.QUEUE),
        ("executions", shapes.EXECUTION),
        ("workers", shapes.WORKER),
        ("leases", shapes.LEASE),
        ("dead_letters", shapes.LETTER),
    ):
        assert list(now[name][0]) == list(shape), name
    assert "paused" in program("queue", "pause", "default", "--reason", "lunch").stdout
    (queue,) = asked("queue", "list")
    assert (queue["paused_by"], queue["pause_reason"], queue["leased"]) == ("person", "lunch", 1)
    shown = program("status").stdout
    assert "paused by person: lunch" in shown
    assert "living executions: 2" in shown
    program("queue", "resume", "default")
    assert "running" in program("queue", "list").stdout
    assert "queue nope not found" in program("queue", "resume", "nope", code=1).stderr


def test_status_watches_until_it_is_stopped(child: Callable[..., ChildProcess], dsn: str, db: Database) -> None:
    command = (sys.executable, "-m", "pg_pipeline", "status", "--watch", "--interval", "0.1", "--json")
    watching = child(command=command, env={"PG_PIPELINE_DSN": dsn})
    watching.wait_for_output("\n")
    execution = submitted(db)
    watching.wait_for_output(execution)
    watching.kill9()
    assert json.loads(watching.stdout.splitlines()[0])["executions"] == []


def test_reap_tells_what_it_did(program: Program, asked: Any, db: Database) -> None:
    execution = submitted(db)
    db.rows("update pipeline.execution set deadline = now() - interval '1 s' returning 1")
    answer = asked("reap")
    assert (answer["leader"], answer["counts"]["expired_executions"]) == (True, 1)
    assert executions.get(db, execution)["status"] == "expired"
    assert "nothing to do" in program("reap").stdout


def test_names_and_errors_of_others_do_not_command_the_terminal(
    program: Program, asked: Any, db: Database, hand: HandWorker
) -> None:
    """Control codes and bidi overrides are shown, never sent; rich markup stays text."""
    one = [FileVersion(EVIL, "1", 1)]
    execution = submission.submit(db, "orders", one, request_key="k").execution
    hand.fail(hand.claim(1)[0], retryable=False, error=f"cannot read {EVIL} [/bold]")
    letter = str(dead_letters.listed(db)[0]["id"])
    for arguments in (("dlq", "list"), ("dlq", "show", letter), ("explain", execution), ("status",)):
        shown = program(*arguments).stdout
        assert "[red]x[/red]" in shown
        assert not [c for c in shown if c in "\x1b\x07\u202e"]
    raw = program("dlq", "show", letter, "--json").stdout
    assert raw.isascii()
    assert json.loads(raw)["files"] == [EVIL]


def test_a_database_without_the_schema_says_what_to_do(child: Callable[..., ChildProcess], empty_dsn: str) -> None:
    process = child(None, "queue", "list", module="pg_pipeline", env={"PG_PIPELINE_DSN": empty_dsn})
    assert process.wait() == 1
    assert process.stderr.endswith("run pg-pipeline migrate.\n")
    assert len(process.stderr.splitlines()) == 1
