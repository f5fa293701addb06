"""`pg-pipeline migrate`: bring the schema to this release."""

from typing import Annotated

import typer

from pg_pipeline.cli.output import EXIT_PROBLEMS, console
from pg_pipeline.coordination import migrations
from pg_pipeline.embedded.postgres import ensure_running
from pg_pipeline.settings import get_settings


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 3 if something is missing.")] = False,
) -> None:
    """Bring the database's schema to what this release needs."""
    settings = get_settings()
    dsn = ensure_running(settings)
    if check:
        state = migrations.check(dsn, timeout=settings.connect_timeout)
        if state.current:
            console.print(f"The schema is current ({len(state.applied)} migrations).")
            return
        console.print(f"Missing: {', '.join(state.pending)}. Run: pg-pipeline migrate")
        raise typer.Exit(EXIT_PROBLEMS)
    applied = migrations.migrate(dsn, timeout=settings.connect_timeout)
    console.print(f"Applied: {', '.join(applied)}." if applied else "Nothing to do: the schema is current.")
