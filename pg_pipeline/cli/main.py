"""`pg-pipeline`: one module per group of commands; each brings an app or a function, joined here."""

import platform
import sys
from typing import Annotated

import typer

from pg_pipeline import __version__
from pg_pipeline.cli import demo, doctor, migrate, up
from pg_pipeline.cli.output import EXIT_ERROR
from pg_pipeline.errors import PgPipelineError

app = typer.Typer(
    name="pg-pipeline",
    help="Every landed file processed exactly once, with Postgres, Dagster and Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(demo.demo)
app.command()(up.up)
app.command()(migrate.migrate)
app.command()(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pg-pipeline {__version__} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    try:
        app(prog_name="pg-pipeline")
    except PgPipelineError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_ERROR)
