"""Executions, as a person asks of them: list, explain, attempts, audit."""

from typing import Annotated

import typer

from pg_pipeline.cli import shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import EXIT_PROBLEMS, AsJson, emit, picked, say, show
from pg_pipeline.coordination import executions as ask

Execution = Annotated[str, typer.Argument(help="Its key, such as 20261118-0001.")]


def executions(
    pipeline: Annotated[str | None, typer.Option(help="Only of this pipeline.")] = None,
    status: Annotated[str | None, typer.Option(help="Only in this status, such as blocked.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List executions, the newest first."""
    with opened(reading=True) as db:
        rows = ask.listed(db, pipeline=pipeline, status=status, limit=limit)
    if as_json:
        emit(picked(rows, shapes.EXECUTION))
        return
    show_executions(rows, empty="There are no such executions.")


def show_executions(rows: list[dict[str, object]], *, empty: str, title: str = "") -> None:
    show(
        ("execution", "pipeline", "status", "gen", "batches", "files", "rows", "quarantined", "letters", "created"),
        (
            (
                r["execution"],
                r["pipeline"],
                r["status"],
                r["generation"],
                f"{r['settled']}/{r['expected']}",
                r["files"],
                r["rows_out"],
                r["quarantined"],
                r["dead_letters"],
                r["created_at"],
            )
            for r in rows
        ),
        empty=empty,
        title=title,
    )


def explain(execution: Execution, as_json: AsJson = False) -> None:
    """Say what an execution waits for, who holds it, since when, and what to do."""
    with opened(reading=True) as db:
        reasons = ask.explain(db, execution)
    if as_json:
        emit([{name: getattr(reason, name) for name in shapes.REASON} for reason in reasons])
        return
    for reason in reasons:
        say(f"{reason.what}: {reason.detail}")
        if reason.next_step:
            say(f"  → {reason.next_step}", style="cyan")


def attempts(execution: Execution, as_json: AsJson = False) -> None:
    """List every lease there was and is: when, by whom, and how it ended."""
    with opened(reading=True) as db:
        rows = ask.attempts(db, execution)
    if as_json:
        emit(picked(rows, shapes.ATTEMPT))
        return
    show(
        ("kind", "batch", "gen", "attempt", "outcome", "worker", "began", "seconds", "error"),
        (
            (
                r["kind"],
                r["batch"],
                r["generation"],
                r["number"],
                r["outcome"] or "at work",
                r["worker_name"] or r["worker"],
                r["claimed_at"],
                f"{(r['ended_at'] - r['claimed_at']).total_seconds():.1f}" if r["ended_at"] else None,
                r["error"],
            )
            for r in rows
        ),
        empty="Nobody has worked on it yet.",
    )


def audit(
    execution: Annotated[str | None, typer.Argument(help="Only this one; all of them without it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check promises P1 to P5 on the live tables; exit 3 where one is not kept."""
    with opened(reading=True) as db:
        if execution is not None:
            ask.get(db, execution)
        violations = ask.audit(db, execution)
    if as_json:
        emit([{name: getattr(violation, name) for name in shapes.VIOLATION} for violation in violations])
    elif violations:
        show(
            ("promise", "execution", "subject", "violation"),
            ((v.promise, v.execution, v.subject, v.violation) for v in violations),
            empty="",
        )
    else:
        say("Clean: promises P1 to P5 hold.", style="green")
    if violations:
        raise typer.Exit(EXIT_PROBLEMS)
