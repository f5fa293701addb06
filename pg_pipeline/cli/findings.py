"""What `doctor` and `health` found: one line each, and how to mend what is not well."""

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.table import Table
from rich.text import Text

from pg_pipeline.cli import shapes
from pg_pipeline.cli.output import EXIT_PROBLEMS, console, emit, visible


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `fix` says how to mend it and is empty where all is well."""

    name: str
    found: str
    fix: str = ""


def plain(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{name: getattr(finding, name) for name in shapes.FINDING} for finding in findings]


def tell(findings: Sequence[Finding], as_json: bool) -> None:
    """Print them, and exit with 3 where something needs mending."""
    problems = sum(bool(finding.fix) for finding in findings)
    if as_json:
        emit(plain(findings))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            mark = Text("problem", style="bold red") if finding.fix else Text("ok", style="green")
            table.add_row(mark, finding.name, Text(visible(finding.found)))
            if finding.fix:
                table.add_row("", "", Text(f"→ {visible(finding.fix)}", style="yellow"))
        console.print(table)
        console.print(f"{problems} problems found." if problems != 1 else "1 problem found.")
    if problems:
        raise typer.Exit(EXIT_PROBLEMS)
