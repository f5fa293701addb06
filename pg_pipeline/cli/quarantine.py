"""`pg-pipeline quarantine`: files set aside because they are bad, while the rest of their batch went through."""

from typing import Annotated, Any

import typer

from pg_pipeline.cli import recipes, shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.executions import Execution
from pg_pipeline.cli.output import AsJson, Yes, agreed, cell, emit, group, pick, picked, say, show
from pg_pipeline.cli.rerun import again, tell
from pg_pipeline.coordination import executions
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import NotFound
from pg_pipeline.storage.urls import local_path

app = group(help="Quarantine: files that were set aside because they are bad.", no_args_is_help=True)

_MANY = 10_000_000


@app.command("list")
def listed(
    execution: Annotated[str | None, typer.Argument(help="Only of this execution.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """List quarantined files, those of the newest execution first."""
    with opened(reading=True) as db:
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
    with opened(reading=True) as db:
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
    """Re-run the batches of a finished execution that hold quarantined files; mended versions take their place."""
    with opened() as db:
        row = executions.get(db, execution)
        held = [f for f in executions.quarantined(db, execution, limit=_MANY) if not batch or f["batch"] in batch]
        chosen = sorted({file["batch"] for file in held})
        if not chosen:
            raise NotFound(f"execution {execution} has no such batch with quarantined files: nothing was re-run.")
        agreed(f"Re-run {len(chosen)} batches of execution {execution}, replacing their rows?", yes)
        if row["ended_at"] is not None:
            _replace(db, row, [file["path"] for file in held])
        answer = again(db, row, chosen, None)
    tell([answer], as_json)


def _replace(db: Database, row: dict[str, Any], paths: list[str]) -> None:
    """Of each file the version that is there now, so that the re-run reads it; what is gone stays as it was."""
    from pg_pipeline.pipelines import landing

    recipe = recipes.named(row["pipeline"])
    for path in paths:
        here = local_path(path)
        if here.is_file() if here is not None else recipe.storage.find(path) is not None:
            for file in landing.under(recipe, [path]):
                executions.replace_file(db, row["execution"], file)
