"""`pg-pipeline quarantine`: files set aside because they are bad, while the rest of their batch went through."""

from typing import Annotated

import typer

from pg_pipeline.cli import shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.executions import Execution
from pg_pipeline.cli.output import AsJson, Yes, agreed, cell, emit, group, pick, picked, say, show
from pg_pipeline.cli.rerun import again, tell
from pg_pipeline.coordination import executions
from pg_pipeline.errors import NotFound

app = group(help="Quarantine: files that were set aside because they are bad.", no_args_is_help=True)

_MANY = 10_000_000


@app.command("list")
def listed(
    execution: Annotated[str | None, typer.Argument(help="Only of this execution.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """List quarantined files, those of the newest execution first."""
    with opened() as db:
        if execution is not None:
            executions.get(db, execution)
        rows = executions.quarantined(db, execution, limit=limit)
    if as_json:
        emit(picked(rows, shapes.QUARANTINED))
        return
    show(
        ("execution", "batch", "size", "reason", "path"),
        ((r["execution"], r["batch"], r["size"], r["reason"], r["path"]) for r in rows),
        empty="No files are in quarantine.",
    )


@app.command("show")
def show_one(
    execution: Execution, path: Annotated[str, typer.Argument(help="As the list gives it.")], as_json: AsJson = False
) -> None:
    """Show one quarantined file, with all that is known of what is wrong with it."""
    with opened() as db:
        rows = executions.quarantined(db, execution, limit=_MANY)
    found = next((row for row in rows if row["path"] == path), None)
    if found is None:
        raise NotFound(
            f"{path} is not in the quarantine of execution {execution}: see pg-pipeline quarantine list {execution}."
        )
    if as_json:
        emit(pick(found, shapes.QUARANTINED))
        return
    for name in shapes.QUARANTINED:
        say(f"{name.replace('_', ' ')}: {cell(found[name])}")


@app.command()
def replay(
    execution: Execution,
    batch: Annotated[list[int] | None, typer.Option(min=0, help="Only this batch (repeatable).")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Re-run the batches of a finished execution that hold quarantined files, once those were mended."""
    with opened() as db:
        row = executions.get(db, execution)
        held = sorted({file["batch"] for file in executions.quarantined(db, execution, limit=_MANY)})
        chosen = [number for number in held if not batch or number in batch]
        if not chosen:
            raise NotFound(f"execution {execution} has no such batch with quarantined files: nothing was re-run.")
        agreed(f"Re-run {len(chosen)} batches of execution {execution}, replacing their rows?", yes)
        answer = again(db, row, chosen, None)
    tell([answer], as_json)
