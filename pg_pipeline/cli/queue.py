"""`pg-pipeline queue`: list, pause, resume."""

from typing import Annotated

import typer

from pg_pipeline.cli import shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import AsJson, emit, group, picked, say, show
from pg_pipeline.coordination import executions

app = group(help="Queues: how much waits, and whether anything is taken.", no_args_is_help=True)

Queue = Annotated[str, typer.Argument(help="Its name.")]


@app.command("list")
def listed(as_json: AsJson = False) -> None:
    """List queues: what is ready, delayed and leased, and who serves them."""
    with opened(reading=True) as db:
        rows = executions.queues(db)
    if as_json:
        emit(picked(rows, shapes.QUEUE))
        return
    show(
        ("queue", "state", "ready", "delayed", "leased", "suspects", "letters", "workers", "oldest since"),
        (
            (
                r["queue"],
                f"paused by {r['paused_by']}: {r['pause_reason']}" if r["paused_at"] else "running",
                r["ready"],
                r["delayed"],
                r["leased"],
                r["suspects"],
                r["dead_letters"],
                r["workers"],
                r["oldest_ready_at"],
            )
            for r in rows
        ),
        empty="There are no queues yet: the first pipeline that is registered makes its own.",
    )


@app.command()
def pause(
    queue: Queue, reason: Annotated[str, typer.Option(help="Shown to whoever wonders why nothing moves.")]
) -> None:
    """Let nothing more be claimed; what is being worked on finishes."""
    with opened() as db:
        executions.pause(db, queue, reason)
    say(f"Queue {queue} is paused; pg-pipeline queue resume {queue} lets it go on.")


@app.command()
def resume(queue: Queue) -> None:
    """Let tasks be claimed again, also after the circuit breaker paused it."""
    with opened() as db:
        executions.resume(db, queue)
    say(f"Queue {queue} is running.")
