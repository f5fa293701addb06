"""A look at a schema's DDL without Spark: enough to catch a slip when definitions load, and to name the columns."""

from __future__ import annotations

import re

from pg_pipeline.errors import ConfigurationError

_TYPES = frozenset(
    [
        *("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"),
        *("float", "real", "double", "decimal", "dec", "numeric", "string", "char", "varchar", "binary"),
        *("date", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval"),
        *("array", "map", "struct", "variant", "void"),
    ]
)
_FIELD = re.compile(r"^(`(?:[^`]|``)+`|\w+)\s*(?::|\s)\s*(\w+)(.*)$", re.DOTALL)


def columns(schema: str) -> list[tuple[str, str]]:
    """Name and type of each column; ConfigurationError for what Spark would refuse."""
    found = []
    for part in _split(schema):
        match = _FIELD.match(part.strip())
        if match is None:
            raise ConfigurationError(f"The schema has {part.strip()!r} where a name and a type belong.")
        name, kind, rest = match.groups()
        if kind.lower() not in _TYPES:
            raise ConfigurationError(
                f"The schema gives {name} the type {kind!r}, which Spark does not know: use one such as long or string."
            )
        found.append((name.strip("`"), (kind + rest).strip()))
    names = [name.lower() for name, _ in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigurationError(f"The schema names {', '.join(sorted(twice))} twice.")
    return found


def _split(schema: str) -> list[str]:
    """At the commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(schema):
        if character in "(<":
            depth += 1
        elif character in ")>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(schema[start:index])
            start = index + 1
    if depth:
        raise ConfigurationError(f"The schema {schema!r} has a bracket that does not close.")
    return [*parts, schema[start:]]
