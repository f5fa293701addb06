"""`pg-pipeline dlq`: dead letters. Look, replay, discard."""

from typing import Annotated, Any
from uuid import UUID

import typer

from pg_pipeline.cli import shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import EXIT_ERROR, AsJson, Yes, agreed, cell, emit, group, pick, picked, say, show
from pg_pipeline.coordination import dead_letters
from pg_pipeline.errors import NotFound, WrongState

app = group(help="Dead letters: tasks that will not be tried again by themselves.", no_args_is_help=True)

Queue = Annotated[str | None, typer.Option(help="Only of this queue.")]
Pipeline = Annotated[str | None, typer.Option(help="Only of this pipeline.")]
Execution = Annotated[str | None, typer.Option(help="Only of this execution.")]
RequestId = Annotated[
    UUID | None, typer.Option(help="Your own id for this request: asked again with it, the same answer comes back.")
]


@app.command("list")
def listed(
    queue: Queue = None,
    pipeline: Pipeline = None,
    execution: Execution = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the letters that wait for a person, oldest first."""
    with opened(reading=True) as db:
        rows = dead_letters.listed(db, queue=queue, pipeline=pipeline, execution=execution, limit=limit)
    if as_json:
        emit(picked(rows, shapes.LETTER))
        return
    show(
        ("letter", "pipeline", "execution", "kind", "batch", "attempts", "reason", "error", "died"),
        (
            (
                r["id"],
                r["pipeline"],
                r["execution"],
                r["kind"],
                r["batch"],
                r["attempts"],
                r["reason"],
                (r["error"] or "")[:200],
                r["died_at"],
            )
            for r in rows
        ),
        empty="No dead letters wait.",
    )


@app.command("show")
def show_one(letter: Annotated[int, typer.Argument(help="Its number.")], as_json: AsJson = False) -> None:
    """Show one letter whole, with its files and history, also after it was resolved."""
    with opened(reading=True) as db:
        found = dead_letters.show(db, letter)
    if as_json:
        emit(pick(found, shapes.LETTER_WHOLE))
        return
    for name in shapes.LETTER_WHOLE:
        if name not in ("error", "files", "history") and found[name] not in (None, ""):
            say(f"{name.replace('_', ' ')}: {cell(found[name])}")
    say(f"error: {found['error']}")
    for path in found["files"]:
        say(f"file: {path}")
    for one in found["history"]:
        say(f"attempt {one['number']}: {one['outcome']}, {one['claimed_at']} to {one['ended_at']} {one['error'] or ''}")


@app.command()
def replay(
    letters: Annotated[list[int] | None, typer.Argument(help="Their numbers.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that the filters leave.")] = False,
    queue: Queue = None,
    pipeline: Pipeline = None,
    execution: Execution = None,
    reason: Annotated[str | None, typer.Option(help="Only those that died of this reason.")] = None,
    request_id: RequestId = None,
    as_json: AsJson = False,
) -> None:
    """Put letters back into their queue with more attempts; their history stays."""
    if bool(letters) == every:
        raise typer.BadParameter("name letters, or use --all with filters")
    if not every and (queue or pipeline or execution or reason):
        raise typer.BadParameter("filters go with --all")
    if request_id and len(letters or ()) != 1:
        raise typer.BadParameter("--request-id goes with one letter")
    replayed: list[int] = []
    refused: list[dict[str, Any]] = []
    with opened() as db:
        if every:
            done = dead_letters.replay_many(
                db, queue=queue, pipeline=pipeline, execution=execution, reason=reason, limit=1_000_000
            )
            replayed, refused = list(done.replayed), [dict(one) for one in done.refused]
        for letter in dict.fromkeys(letters or ()):
            try:
                dead_letters.replay(db, letter, request_id=request_id)
                replayed.append(letter)
            except (NotFound, WrongState) as error:
                refused.append({"dead_letter": letter, "why": str(error)})
    if as_json:
        emit({"replayed": replayed, "refused": refused})
    else:
        say(f"Replayed {len(replayed)} dead letters.")
    for one in refused:
        typer.echo(f"Error: {cell(one['why'])}", err=True)
    if refused:
        raise typer.Exit(EXIT_ERROR)


@app.command()
def discard(
    letters: Annotated[list[int], typer.Argument(help="Their numbers.")],
    why: Annotated[str, typer.Option(help="The reason: all that will be left to explain it.")],
    request_id: RequestId = None,
    yes: Yes = False,
) -> None:
    """Settle letters for good: their files will not be processed."""
    if request_id and len(letters) != 1:
        raise typer.BadParameter("--request-id goes with one letter")
    agreed(f"Discard dead letters {', '.join(map(str, letters))} for good?", yes)
    with opened() as db:
        for letter in dict.fromkeys(letters):
            dead_letters.discard(db, letter, why, request_id=request_id)
            say(f"Dead letter {letter} is discarded.")
