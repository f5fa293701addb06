"""What every command shares: where it prints, how it escapes, what its exit code means."""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Colours go by themselves where the output is not a terminal, or where NO_COLOR is set; a file or a pipe gets
# whole lines.
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_PROBLEMS = 3  # the command worked and found something that needs a person

AsJson = Annotated[bool, typer.Option("--json", help="As JSON, in the shape that docs/cli.md gives.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, bidi overrides, half characters, odd line ends

_NUMBERS = ("files", "batches", "rows", "bytes", "size", "attempts", "ready", "delayed", "leased", "workers", "leases")
_KEYS = ("execution", "letter", "status", "kind", "batch", "gen", "attempt", "outcome", "promise")  # copied whole


def typed(*words: str) -> str:
    """A command of ours as it can be typed here: in a checkout the program is not on the PATH."""
    if shutil.which("pg-pipeline"):
        return " ".join(("pg-pipeline", *words))
    called = Path(sys.argv[0])
    if called.name == "pg-pipeline":
        return " ".join((os.path.relpath(called), *words))
    return " ".join((sys.executable, "-m", "pg_pipeline", *words))


def group(**options: Any) -> typer.Typer:
    """Commands under a common word."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **options)


def visible(value: object, *, lines: bool = False) -> str:
    """Text that a terminal shows and never obeys. File names and errors are other people's."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c == "\n" and lines else c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNSEEN else c
        for c in text
    )


def say(text: object, *, style: str = "") -> None:
    """A line; what is in it is never read as markup."""
    console.print(Text(visible(text, lines=True), style=style))


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, title: str = "") -> None:
    """A table, or a sentence where there is nothing."""
    made = table(columns, rows)
    if title:
        say(title, style="bold")
    if made.row_count:
        console.print(made)
    else:
        say(empty)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        side: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        made.add_column(name, justify=side, overflow="fold", no_wrap=name in (*_NUMBERS, *_KEYS))
    for row in rows:
        made.add_row(*(Text(cell(value)) for value in row))
    return made


def cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return visible(", ".join(str(v) for v in value))
    return visible(value)


def emit(value: object) -> None:
    """One JSON document. ASCII: no byte of it can reach a terminal as a command."""
    typer.echo(json.dumps(value, default=_plain, allow_nan=False))


def pick(row: Mapping[str, Any], shape: Mapping[str, str]) -> dict[str, Any]:
    """The documented fields and no others, so that a new column changes nothing."""
    return {name: row[name] for name in shape}


def picked(rows: Iterable[Mapping[str, Any]], shape: Mapping[str, str]) -> list[dict[str, Any]]:
    return [pick(row, shape) for row in rows]


def agreed(question: str, yes: bool) -> None:
    """Ask before what cannot be undone; where nobody can answer, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        typer.echo(f"Error: {visible(question)} Nobody is here to answer and nothing was done: add --yes.", err=True)
        raise typer.Exit(EXIT_USAGE)
    if not typer.confirm(visible(question), err=True):
        typer.echo("Nothing was done.", err=True)
        raise typer.Exit(EXIT_ERROR)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)
