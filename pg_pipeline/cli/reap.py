"""`pg-pipeline reap`: one pass of housekeeping, as the reaper's sensor makes it."""

import logging
from typing import Annotated, Any

import typer

from pg_pipeline.cli import recipes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import AsJson, emit, say
from pg_pipeline.coordination import reaper
from pg_pipeline.coordination.connect import connect
from pg_pipeline.coordination.types import AttemptRef
from pg_pipeline.errors import NotFound


def reap(
    limit: Annotated[int, typer.Option(min=1, help="Rows per chore.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Tidy up once: expired executions, leavings of dead attempts, history past its retention."""
    pipelines = recipes.known()
    left: list[str] = []
    with opened() as db:

        def discard(_sink: str, attempt: AttemptRef, _location: Any) -> None:
            pipeline = pipelines.get(attempt.pipeline)
            if pipeline is None:  # only its own code knows its sink
                left.append(attempt.pipeline)
                raise NotFound(f"pipeline {attempt.pipeline} not found.")
            with connect(db.dsn) as conn:
                pipeline.sink.discard(conn, attempt)

        logging.getLogger("pg_pipeline.reaper").disabled = True  # told below, in a sentence
        done = reaper.reap(db, discard, limit=limit)
    if as_json:
        emit({"leader": bool(done.counts), "counts": done.counts})
        return
    if not done.counts:
        say("Another process is at it: nothing was done.")
        return
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in done.counts.items() if count)
    say(f"Reaped: {told}." if told else "There was nothing to do.")
    if left:
        say(f"Leavings of {', '.join(sorted(set(left)))} stay: PG_PIPELINE_PIPELINES must name the module that has it.")
