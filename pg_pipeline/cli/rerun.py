"""What a person does to executions: run them again, cancel them."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import NAMESPACE_URL, UUID, uuid5

import typer

from pg_pipeline.cli import shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.executions import Execution
from pg_pipeline.cli.output import EXIT_ERROR, AsJson, Yes, agreed, emit, pick, say
from pg_pipeline.coordination import executions as ask
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import InvalidInput, NotFound, WrongState

_MANY = 1_000_000
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def rerun(
    executions: Annotated[list[str] | None, typer.Argument(help="Executions, all their batches.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=0, help="Only this batch (one execution; repeatable).")] = None,
    pipeline: Annotated[str | None, typer.Option(help="Every finished execution of this pipeline …")] = None,
    since: Annotated[str | None, typer.Option(help="… submitted since then: 2026-11-01, a full time, or 7d.")] = None,
    request_key: Annotated[
        str | None,
        typer.Option(help="Names this round: asked again with it, what was re-run is not re-run again."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run finished executions again, as a new generation; new rows replace the old ones.

    Interrupted, the same command goes on where it was. With --pipeline and --since the round is named after them, so
    another round over the same executions needs a --request-key of its own.
    """
    if bool(executions) == bool(pipeline) or bool(pipeline) != bool(since):
        raise typer.BadParameter("name executions, or --pipeline with --since")
    if batch and len(executions or ()) != 1:
        raise typer.BadParameter("--batch goes with one execution")
    with opened() as db:
        if pipeline and since:
            chosen = _since(db, pipeline, since)
            request_key = request_key or f"{pipeline} since {since}"
        else:
            chosen = [ask.get(db, execution) for execution in dict.fromkeys(executions or ())]
        if not chosen:
            say("There is nothing to re-run.") if not as_json else emit([])
            return
        agreed(f"Re-run {len(chosen)} executions, replacing their rows?", yes)
        answers = [again(db, row, batch, request_key) for row in chosen]
    tell(answers, as_json)


def again(db: Database, row: dict[str, Any], batches: list[int] | None, request_key: str | None) -> dict[str, Any]:
    """Re-run one. Its request id is made of the round's key, or of the generation that it replaces."""
    key, generation = row["execution"], row["generation"]
    live = row["state"] in ("open", "sealed")
    mark = request_key if request_key else f"generation {generation - 1 if live else generation}, {batches}"
    answer: dict[str, Any] = {"execution": key, "generation": None, "batches": None, "why": None}
    try:
        made = ask.rerun(db, key, batches, request_id=request_id("rerun", key, mark))
    except (WrongState, NotFound) as error:
        return answer | {"outcome": "refused", "why": str(error)}
    before = made["generation"] <= generation
    return answer | {"outcome": "asked before" if before else "re-run"} | pick(made, {"generation": "", "batches": ""})


def request_id(*parts: object) -> UUID:
    return uuid5(NAMESPACE_URL, "\0".join(["pg_pipeline", *map(str, parts)]))


def tell(answers: list[dict[str, Any]], as_json: bool) -> None:
    refused = [answer for answer in answers if answer["outcome"] == "refused"]
    if as_json:
        emit([pick(answer, shapes.RERUN) for answer in answers])
    else:
        for answer in answers:
            if answer["outcome"] == "refused":
                continue
            before = " (asked before)" if answer["outcome"] == "asked before" else ""
            say(f"{answer['execution']}: generation {answer['generation']}, {answer['batches']} batches{before}.")
    for answer in refused:
        typer.echo(f"Error: {answer['why']}", err=True)
    if refused:
        raise typer.Exit(EXIT_ERROR)


def cancel(
    execution: Execution,
    reason: Annotated[str, typer.Option(help="Kept with the execution, and told to whoever waits for it.")],
    yes: Yes = False,
) -> None:
    """End a living execution now; its files that were not committed are released."""
    with opened() as db:
        row = ask.get(db, execution)
        agreed(f"Cancel execution {execution}, with {row['remaining']} of {row['expected']} batches unsettled?", yes)
        ask.cancel(db, execution, reason)
    say(f"Execution {execution} is cancelled; pg-pipeline submit --released takes its released files again.")


def _since(db: Database, pipeline: str, text: str) -> list[dict[str, Any]]:
    """Oldest first. Those that are being re-run are among them: the round may be what re-runs them."""
    start = moment(text)
    rows = ask.listed(db, pipeline=pipeline, limit=_MANY)
    return [
        row
        for row in reversed(rows)
        if row["created_at"] >= start
        and row["expected"] > 0
        and (row["state"] == "finished" or (row["state"] == "sealed" and row["generation"] > 1))
    ]


def moment(text: str) -> datetime:
    unit = _UNITS.get(text[-1:])
    try:
        if unit and text[:-1].isdigit():
            return datetime.now(UTC) - timedelta(**{unit: int(text[:-1])})
        given = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text!r} is no time: use 2026-11-01, 2026-11-01T08:00+01:00, or 7d.") from None
    return given if given.tzinfo else given.astimezone()
