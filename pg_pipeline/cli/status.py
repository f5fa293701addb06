"""`pg-pipeline status`: queues, executions, workers, leases and dead letters at a glance."""

import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from pg_pipeline.cli import shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import AsJson, console, emit, picked, table
from pg_pipeline.coordination import dead_letters, executions
from pg_pipeline.coordination.database import Database


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show queues, living executions, workers, leases and dead letters; with --watch, live."""
    with opened(reading=True) as db:
        if as_json:
            emit(_now(db))
            while watch:
                time.sleep(interval)
                emit(_now(db))
        elif watch and console.is_terminal:
            with Live(_drawn(_now(db)), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    live.update(_drawn(_now(db)), refresh=True)
        else:
            console.print(_drawn(_now(db)))
            while watch:
                time.sleep(interval)
                console.print(_drawn(_now(db)))


def _now(db: Database) -> dict[str, Any]:
    living = [row for row in executions.listed(db, limit=200) if row["ended_at"] is None]
    # One with no pipelines only says that its run lives.
    workers = [row for row in executions.workers(db) if row["status"] != "stopped" and row["pipelines"] != []]
    return {
        "queues": picked(executions.queues(db), shapes.QUEUE),
        "executions": picked(living, shapes.EXECUTION),
        "workers": picked(workers, shapes.WORKER),
        "leases": picked(executions.leases(db), shapes.LEASE),
        "dead_letters": picked(dead_letters.listed(db), shapes.LETTER),
    }


def _drawn(now: dict[str, Any]) -> Group:
    parts: list[RenderableType] = []
    for title, columns, rows in (
        (
            "queues",
            ("queue", "state", "ready", "delayed", "leased", "letters", "workers", "oldest since"),
            [
                (
                    q["queue"],
                    f"paused by {q['paused_by']}: {q['pause_reason']}" if q["paused_at"] else "running",
                    q["ready"],
                    q["delayed"],
                    q["leased"],
                    q["dead_letters"],
                    q["workers"],
                    q["oldest_ready_at"],
                )
                for q in now["queues"]
            ],
        ),
        (
            "living executions",
            ("execution", "pipeline", "status", "batches", "files", "quarantined", "letters", "since"),
            [
                (
                    x["execution"],
                    x["pipeline"],
                    x["status"],
                    f"{x['settled']}/{x['expected']}",
                    x["files"],
                    x["quarantined"],
                    x["dead_letters"],
                    x["created_at"],
                )
                for x in now["executions"]
            ],
        ),
        (
            "workers",
            ("worker", "queue", "status", "leases", "run", "last heard of"),
            [(w["name"], w["queue"], w["status"], w["leases"], w["run_id"], w["beat_at"]) for w in now["workers"]],
        ),
        (
            "leases",
            ("execution", "kind", "batch", "attempt", "worker", "since"),
            [
                (t["execution"], t["kind"], t["batch"], t["number"], t["worker_name"], t["claimed_at"])
                for t in now["leases"]
            ],
        ),
        (
            "dead letters",
            ("letter", "execution", "kind", "batch", "reason", "error"),
            [
                (d["id"], d["execution"], d["kind"], d["batch"], d["reason"], (d["error"] or "")[:100])
                for d in now["dead_letters"]
            ],
        ),
    ):
        parts.append(Text(f"{title}: {len(rows) or 'none'}", style="bold"))
        if rows:
            parts.append(table(columns, rows))
    return Group(*parts)
