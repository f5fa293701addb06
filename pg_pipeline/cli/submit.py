"""`pg-pipeline submit`: hand files to a pipeline. Asked twice with the same key, it is asked once."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from pg_pipeline.cli import recipes, shapes
from pg_pipeline.cli.database import opened
from pg_pipeline.cli.output import AsJson, emit, say
from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.submission import Submission
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput, NotFound
from pg_pipeline.storage.roots import is_inside
from pg_pipeline.storage.urls import canonical, is_url


def submit(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, or folders: the data files in them, at any depth.")
    ] = None,
    request_key: Annotated[
        str | None, typer.Option(help="Asking again with it is asking once; a new one by default.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose files they are; tenants take turns.")] = "",
    priority: Annotated[int, typer.Option(min=-32768, max=32767, help="Higher goes first.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be taken; change nothing.")] = False,
    keep_open: Annotated[bool, typer.Option("--open", help="Leave the execution open: more files come.")] = False,
    add: Annotated[str | None, typer.Option(metavar="EXECUTION", help="Add to this open execution.")] = None,
    seal: Annotated[bool, typer.Option("--seal", help="With --add: no more files come after these.")] = False,
    released: Annotated[
        bool, typer.Option("--released", help="Also take files that an ended execution released.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit files: one execution, cut into batches."""
    # Absolute, so that the same request from another folder is the same request.
    wanted = [_whole(path) for path in paths or ()]
    _check_usage(wanted, keep_open=keep_open, add=add, seal=seal, dry_run=dry_run, request_key=request_key)
    recipe = recipes.named(pipeline)

    def listed() -> Iterator[FileVersion]:
        from pg_pipeline.pipelines import landing

        try:
            for path in wanted:
                refused = is_url(path) and not is_inside(path, recipe.allowed_roots)  # nothing is asked there
                if not refused and not landing.exists(recipe, path):
                    raise NotFound(f"There is no file or folder {path}: nothing was submitted.")
            yield from landing.under(recipe, wanted)
        except OSError as error:
            raise InvalidInput(f"{error.filename or error} cannot be read: nothing was submitted.") from None

    with opened() as db:
        if dry_run:
            _preview(db, pipeline, listed(), released=released, as_json=as_json)
            return
        submission.register_pipeline(db, recipe.name, **recipe.registration)
        if add is None:
            made = submission.submit(
                db,
                pipeline,
                listed,
                request_key=request_key or f"cli:{uuid4()}",
                request={"paths": wanted},
                tenant=tenant,
                priority=priority,
                released=released,
                seal=not keep_open,
            )
        else:
            made = _added(db, pipeline, add, listed if wanted else None, released=released, seal=seal)
    if as_json:
        emit({name: getattr(made, name) for name in shapes.SUBMISSION})
    else:
        _tell(made, asked_before=not made.created and add is None)


def _whole(path: str) -> str:
    if is_url(path):
        return canonical(path)
    return path if path.startswith("file://") else os.path.abspath(Path(path).expanduser())


def _check_usage(
    paths: list[str], *, keep_open: bool, add: str | None, seal: bool, dry_run: bool, request_key: str | None
) -> None:
    if seal and add is None:
        raise typer.BadParameter("--seal goes with --add EXECUTION; a submission is sealed unless it has --open")
    if add is not None and (keep_open or request_key or dry_run):
        raise typer.BadParameter("--add goes with neither --open, --request-key nor --dry-run")
    if not paths and not seal:
        raise typer.BadParameter("name at least one file or folder")


def _added(
    db: Database, pipeline: str, execution: str, files: submission.Files | None, *, released: bool, seal: bool
) -> Submission:
    owner = executions.get(db, execution)["pipeline"]
    if owner != pipeline:
        raise InvalidInput(f"execution {execution} is of pipeline {owner}, not {pipeline}: nothing was added.")
    made = submission.add(db, pipeline, execution, files, released=released) if files is not None else None
    if seal or made is None:
        made = submission.seal(db, execution)
    return made


def _preview(db: Database, pipeline: str, files: Iterable[FileVersion], *, released: bool, as_json: bool) -> None:
    unique: dict[tuple[str, str], FileVersion] = {}
    repeated = 0
    for file in files:
        repeated += (file.path, file.version) in unique
        unique[file.path, file.version] = file
    found: list[dict[str, Any]] = [
        {"path": v.path, "version": v.version, "verdict": v.verdict, "execution": v.execution}
        for v in submission.preview(db, pipeline, list(unique.values()), released=released)
    ]
    if not found:  # a pipeline that was never registered knows no file
        found = [{"path": f.path, "version": f.version, "verdict": "take", "execution": None} for f in unique.values()]
    counts = Counter(one["verdict"] for one in found)
    if repeated:
        counts["repeated"] = repeated
    if as_json:
        emit({"pipeline": pipeline, "counts": dict(counts), "files": found})
        return
    for one in found:
        owner = f" (execution {one['execution']})" if one["execution"] and one["verdict"] != "take" else ""
        say(f"{one['verdict']:<8} {one['path']}{owner}")
    say(f"Nothing was submitted. A submit would take {counts.pop('take', 0)} files{_left_out(counts)}.")


def _tell(made: Submission, *, asked_before: bool) -> None:
    say(
        f"Execution {made.execution}{' (asked before)' if asked_before else ''} is {made.state}: "
        f"{made.taken} files in {made.batches} batches{_left_out(made.left_out)}."
    )
    if not made.taken and made.left_out:
        say("Every file was left out: see why with --dry-run.")


def _left_out(counts: Any) -> str:
    left = ", ".join(f"{count} {why}" for why, count in counts.items())
    return f"; left out: {left}" if left else ""
