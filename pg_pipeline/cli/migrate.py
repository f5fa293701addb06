"""`pg-pipeline migrate`: bring the schema to this release."""

from typing import Annotated

import typer

from pg_pipeline.cli.output import EXIT_PROBLEMS, AsJson, emit, say
from pg_pipeline.coordination import migrations
from pg_pipeline.embedded.postgres import ensure_running
from pg_pipeline.settings import get_settings


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 3 if something is missing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database's schema to what this release needs."""
    settings = get_settings()
    dsn = ensure_running(settings)
    done = [] if check else migrations.migrate(dsn, timeout=settings.connect_timeout)
    state = migrations.check(dsn, timeout=settings.connect_timeout)
    if as_json:
        emit({"current": state.current, "applied": list(done), "pending": list(state.pending)})
    elif done:
        say(f"Applied: {', '.join(done)}.")
    elif state.current:
        say(f"The schema is current ({len(state.applied)} migrations): nothing to do.")
    else:
        say(f"Missing: {', '.join(state.pending)}. Run: pg-pipeline migrate")
    if check and not state.current:
        raise typer.Exit(EXIT_PROBLEMS)
