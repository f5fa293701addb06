"""`pg-pipeline receive`: what a store announces, submitted. Told twice, it is submitted once."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Annotated

import typer

from pg_pipeline.cli import recipes, shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import EXIT_PROBLEMS, AsJson, emit, say
from pg_pipeline.coordination.database import Database
from pg_pipeline.errors import NotFound
from pg_pipeline.pipelines.arrival import Received, submit_events
from pg_pipeline.pipelines.pipeline import FilePipeline

GROUP = 1000


def receive(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    file: Annotated[
        str | None, typer.Argument(help="Events as JSON: one document, or one on each line; - for standard input.")
    ] = None,
    sqs: Annotated[str | None, typer.Option(metavar="URL", help="Take them from this queue of SQS.")] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="With --sqs: end when the queue has nothing more; else at Ctrl-C.")
    ] = False,
    gather: Annotated[
        float, typer.Option(min=0, max=120, help="With --sqs: seconds that make one group, and one submission.")
    ] = 5.0,
    tenant: Annotated[str, typer.Option(help="Whose files they are; tenants take turns.")] = "",
    priority: Annotated[int, typer.Option(min=-32768, max=32767, help="Higher goes first.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Submit the files that S3's event notifications announce; exit 3 where some of them were refused.

    A message of SQS is acknowledged once its files are submitted; a refused one comes again, until the queue's own
    policy sets it aside.
    """
    if (file is None) == (sqs is None):
        raise typer.BadParameter("name a file (- for standard input), or a queue with --sqs")
    if until_empty and sqs is None:
        raise typer.BadParameter("--until-empty goes with --sqs")
    recipe = recipes.named(pipeline)
    refused = 0
    whole = Received()
    with opened() as db:
        if sqs is not None:
            going = _from_queue(db, recipe, sqs, gather, tenant, priority, forever=not until_empty, quiet=as_json)
        else:
            going = _from_file(db, recipe, file or "-", tenant, priority)
        for received in going:
            refused += len(received.refused)
            if not as_json:
                _tell(received)
            elif sqs is not None and not until_empty:
                _emit(received)  # a line for each group
            else:
                whole.join(received)
    if as_json and (sqs is None or until_empty):
        _emit(whole)
    if refused:
        raise typer.Exit(EXIT_PROBLEMS)


def _from_queue(
    db: Database,
    recipe: FilePipeline,
    url: str,
    gather: float,
    tenant: str,
    priority: int,
    *,
    forever: bool,
    quiet: bool,
) -> Iterator[Received]:
    from pg_pipeline.pipelines.sqs import Queue, groups

    queue = Queue(url)
    if not queue.has_dead_letters and not quiet:
        say("This queue sets nothing aside: a message that is refused comes back until it is too old for the queue.")
    for group in groups(db, recipe, queue, gather=gather, forever=forever, tenant=tenant, priority=priority):
        yield group.received


def _from_file(db: Database, recipe: FilePipeline, name: str, tenant: str, priority: int) -> Iterator[Received]:
    if name == "-":
        yield from _of(db, recipe, sys.stdin.buffer, tenant, priority)
        return
    try:
        with Path(name).expanduser().open("rb") as stream:
            yield from _of(db, recipe, stream, tenant, priority)
    except OSError as error:
        raise NotFound(f"{name} cannot be read ({error.strerror}): nothing more was submitted.") from None


def _of(db: Database, recipe: FilePipeline, stream: IO[bytes], tenant: str, priority: int) -> Iterator[Received]:
    """A line each; what is one document over several lines is taken whole."""
    lines = (line for line in stream if line.strip())
    first = next(lines, b"")
    if not _is_json(first):
        yield submit_events(db, recipe, [b"".join([first, *lines])], tenant=tenant, priority=priority)
        return
    group = [first]
    while group:
        group += islice(lines, GROUP - len(group))
        yield submit_events(db, recipe, group, tenant=tenant, priority=priority)
        group = list(islice(lines, 1))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _emit(received: Received) -> None:
    made = [{name: getattr(one, name) for name in shapes.SUBMISSION} for one in received.submissions]
    emit({"submissions": made, "ignored": received.ignored, "refused": list(received.refused.values())})


def _tell(received: Received) -> None:
    for one in received.submissions:
        asked = "" if one.created else " (asked before)"
        left = sum(one.left_out.values())
        out = f"; left out: {left}" if left else ""
        say(f"Execution {one.execution}{asked} is {one.state}: {one.taken} files in {one.batches} batches{out}.")
    if received.ignored:
        say(f"Ignored: {', '.join(f'{count} {what}' for what, count in sorted(received.ignored.items()))}.")
    for why in received.refused.values():
        say(f"Refused: {why}")
