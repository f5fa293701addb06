"""Writes docs/cli.md from the commands themselves and docs/sql.md from the SQL files: `make docs`."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

from pg_pipeline.cli import shapes
from pg_pipeline.cli.main import app

HERE = Path(__file__).parent
SQL = HERE.parent / "sql"


def pages() -> dict[str, str]:
    return {"cli.md": "\n".join(_cli()) + "\n", "sql.md": "\n".join(_sql()) + "\n"}


def _cli() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield "Made from the program by `make docs`. `python -m pg_pipeline` is the same as `pg-pipeline`."
    yield ""
    yield (
        "Exit codes: 0 done, 1 failed, 2 wrong usage (also: a question that nobody could answer), "
        "3 found problems (`audit`, `doctor`, `health`, `migrate --check`, `receive`), 130 stopped by Ctrl-C. "
        "Errors are one sentence on stderr. Colours, bars and "
        "live views are off where the output is not a terminal. `pg-pipeline --install-completion` sets up your shell."
    )
    yield from _commands(get_command(app), "pg-pipeline")
    yield ""
    yield "## What `--json` gives"
    yield ""
    yield (
        "One document, in ASCII. These fields are always there, in this order; fields may be added in a later release, "
        "none changes its meaning or goes."
    )
    for name, (many, shape) in shapes.BY_COMMAND.items():
        yield from _shape(f"`{name}`: {'an array of' if many else 'one object'}", shape)
    for name, shape in shapes.PARTS.items():
        yield from _shape(f"`{name}`: an array of", shape)


def _commands(command: Any, path: str) -> Iterator[str]:
    """From the parameters, not from the help text: that one looks different in each release of typer."""
    context = command.context_class(command, info_name=path)
    if path != "pg-pipeline":
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        subcommands = ["COMMAND"] if hasattr(command, "list_commands") else []
        usage = [path, *subcommands, *(_argument(p) for p in arguments), *(["[OPTIONS]"] if options else [])]
        yield ""
        yield f"## {path}" if path.count(" ") == 1 else f"### {path}"
        yield ""
        yield f"`{' '.join(usage)}`"
        yield ""
        yield " ".join((command.help or "").split())
        if arguments or options:
            yield ""
            yield "| | meaning | default |"
            yield "|---|---|---|"
        for one in (*arguments, *options):
            names = ", ".join(one.opts) if one in options else _argument(one)
            default = "required" if one.required else one.default
            yield f"| `{names}` | {one.help or ''} | {default if default not in (None, '', False) else ''} |"
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name), f"{path} {name}")


def _argument(one: Any) -> str:
    name = one.name.upper() + ("…" if one.nargs == -1 else "")
    return name if one.required else f"[{name}]"


def _shape(title: str, shape: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield f"### {title}"
    yield ""
    yield "| field | meaning |"
    yield "|---|---|"
    for name, meaning in shape.items():
        yield f"| `{name}` | {meaning} |"


FUNCTION = re.compile(
    r"((?:^--[^\n]*\n)*)^create or replace (function|view) pipeline\.([a-z]\w*)(.*?)^(?:language|select)",
    re.MULTILINE | re.DOTALL,
)


def _sql() -> Iterator[str]:
    yield "# SQL reference"
    yield ""
    yield (
        "Made from `sql/functions/` by `make docs`. Everything is in the schema `pipeline`; "
        "[protocol.sql](protocol.sql) drives it all from `psql`. A function is granted to the role named with it, and "
        "views to `pipeline_reader`; grant the role to your login. Names that begin with `_` are inner functions."
    )
    yield ""
    yield (
        "Errors have SQLSTATEs of their own: `PP001` lease lost, `PP002` the key was used for something else, "
        "`PP003` not found, `PP004` refused input, `PP005` not in this state, `PP006` unknown worker."
    )
    grants = _grants()
    for file in sorted((SQL / "functions").glob("*.sql")):
        text = file.read_text()
        found = list(FUNCTION.finditer(text))
        if not found:
            continue
        yield ""
        yield f"## {file.stem.replace('_', ' ').strip()}"
        yield ""
        header = re.match(r"((?:^--[^\n]*\n)+)", text)
        yield _prose(header[1] if header else "")
        for one in found:
            comment, kind, name, signature = one.groups()
            yield ""
            yield f"### {name}"
            yield ""
            if kind == "view":
                yield "A view, for `pipeline_reader`."
            else:
                yield "```text"
                yield f"pipeline.{name}{signature.rstrip()}"
                yield "```"
                roles = ", ".join(f"`{role}`" for role in grants.get(name, ())) or "nobody but the owner"
                yield ""
                yield f"For {roles}."
            if comment:
                yield ""
                yield _prose(comment)


def _grants() -> dict[str, list[str]]:
    text = (SQL / "grants.sql").read_text()
    found: dict[str, list[str]] = {}
    for role, names in re.findall(r"\('(pipeline_\w+)',\s+array\[(.*?)\]\)", text, re.DOTALL):
        for name in re.findall(r"'(\w+)'", names):
            if role not in found.setdefault(name, []):
                found[name].append(role)
    return found


def _prose(comment: str) -> str:
    text = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
    return re.sub(r"([<>*_|])", r"\\\1", text)


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text)
