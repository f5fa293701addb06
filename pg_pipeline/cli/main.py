"""`pg-pipeline`: one module per group of commands, each imported when it is called."""

import importlib
import platform
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pg_pipeline import __version__
from pg_pipeline.cli.output import EXIT_ERROR, EXIT_USAGE, group, visible
from pg_pipeline.errors import PgPipelineError

# Where each command lives: a function, or a group of its own (a Typer).
COMMANDS = {
    "demo": "demo:demo",
    "up": "up:up",
    "submit": "submit:submit",
    "receive": "receive:receive",
    "status": "status:status",
    "executions": "executions:executions",
    "explain": "executions:explain",
    "attempts": "executions:attempts",
    "audit": "executions:audit",
    "report": "report:report",
    "rerun": "rerun:rerun",
    "cancel": "rerun:cancel",
    "dlq": "dlq:app",
    "quarantine": "quarantine:app",
    "queue": "queue:app",
    "reap": "reap:reap",
    "health": "health:health",
    "metrics": "metrics:metrics",
    "serve": "serve:serve",
    "migrate": "migrate:migrate",
    "doctor": "doctor:doctor",
}


class Commands(TyperGroup):
    """Imports a command's module when it is asked for: `queue list` waits for neither Dagster nor Spark."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"pg_pipeline.cli.{module}"), attribute)
        if not isinstance(command, typer.Typer):
            function, command = command, group()
            command.command(cmd_name)(function)
        made = typer.main.get_command(command)
        made.name = cmd_name
        return made


app = typer.Typer(
    name="pg-pipeline",
    help="Every landed file processed exactly once, with Postgres, Dagster and Spark.",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"max_content_width": 120},  # or a list of commands cuts what each does
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


# Of the click that this typer brings, which may be its own.
_UsageError: Any = typer.BadParameter.__bases__[0]


def main() -> None:
    import psycopg

    try:
        sys.exit(app(prog_name="pg-pipeline", standalone_mode=False) or 0)
    except PgPipelineError as error:
        _give_up(str(error), EXIT_ERROR)
    except psycopg.Error as error:
        _give_up(_of_postgres(error), EXIT_ERROR)
    except _UsageError as error:
        if "NoArgs" in type(error).__name__:
            error.show()
            sys.exit(EXIT_USAGE)
        command = error.ctx.command_path if error.ctx else "pg-pipeline"
        _give_up(f"{error.format_message().rstrip('.')}: see {command} --help.", EXIT_USAGE)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        sys.exit(EXIT_ERROR)


def _give_up(sentence: str, code: int) -> None:
    typer.echo(f"Error: {visible(sentence)}", err=True)
    sys.exit(code)


def _of_postgres(error: Any) -> str:
    """What Postgres itself refuses, with the next step."""
    message = next(iter(str(error.diag.message_primary or error).splitlines()), type(error).__name__)
    if (error.sqlstate or "").startswith(("42P01", "42883", "3F000", "42703")):
        return f"The schema is missing or of another release ({message}): run pg-pipeline migrate."
    if error.sqlstate == "42501":
        return f"This login may not do that ({message}): grant it the role that docs/operating.md names."
    if error.sqlstate == "25006":
        return f"This Postgres is a replica and takes no change ({message}): set PG_PIPELINE_DSN to the primary."
    if error.sqlstate == "40001" and "recovery" in message:
        return f"The replica had to apply a change first ({message}): ask again, or set hot_standby_feedback on it."
    return f"Postgres says: {message}."
