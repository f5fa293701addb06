"""Text into typed Arrow columns, with Spark's meaning.

A text is *good* (Spark reads it alike), *bad* (Spark refuses it too) or *doubtful*: Spark may have an idea of
its own, so NeedsSpark is raised and the batch goes to Spark's reader. That keeps two readers at one meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
ZONED = TIME + r"(Z|[+-][0-9]{2}:[0-9]{2})$"
UNZONED = TIME + "$"
DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
# What a lenient parser might still take for a number, a date or a time.
_MAYBE = re.compile(r"^\s*[+\-.\d]|^\s*(nan|inf)", re.IGNORECASE)


class NeedsSpark(Exception):
    """Only Spark's own reader can say what this means."""


Verdict = Callable[[str], None]


def cast(texts: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """The texts as `to`, and a mask of the bad ones (null there), or None when all are good."""
    if pa.types.is_string(to):
        return texts, None
    pattern, convert = _rule(to)
    good = pc.fill_null(pc.match_substring_regex(texts, pattern), True)
    if pc.all(good).as_py() is not False:
        try:
            return convert(texts), None
        except pa.ArrowInvalid:
            pass
    return _one_by_one(texts, good, to, convert)


def _one_by_one(
    texts: pa.Array, good: pa.Array, to: pa.DataType, convert: Callable[[pa.Array], pa.Array]
) -> tuple[pa.Array, pa.Array]:
    bad = []
    for text, matches in zip(texts.to_pylist(), good.to_pylist(), strict=True):
        if text is None:
            bad.append(False)
        elif matches:
            bad.append(not _converts(text, to, convert))
        else:
            if _MAYBE.match(text) and not (pa.types.is_integer(to) or pa.types.is_boolean(to)):
                raise NeedsSpark(f"{text[:40]!r} as {to}")
            bad.append(True)
    mask = pa.array(bad, pa.bool_())
    return convert(pc.if_else(mask, pa.scalar(None, pa.string()), texts)), mask


def _converts(text: str, to: pa.DataType, convert: Callable[[pa.Array], pa.Array]) -> bool:
    try:
        convert(pa.array([text], pa.string()))
    except pa.ArrowInvalid:
        # Out of range, or more decimals than the type has: Spark rounds, or makes it null.
        if pa.types.is_decimal(to):
            raise NeedsSpark(f"{text[:40]!r} as {to}") from None
        return False
    return True


def _rule(to: pa.DataType) -> tuple[str, Callable[[pa.Array], pa.Array]]:
    """The form that both readers take alike, and how to convert it."""
    if pa.types.is_boolean(to):
        return "(?i)^(true|false)$", lambda texts: pc.equal(pc.utf8_lower(texts), "true")
    if pa.types.is_integer(to):
        return "^[+-]?[0-9]+$", lambda texts: pc.cast(pc.replace_substring_regex(texts, r"^\+", ""), to)
    if pa.types.is_floating(to) or pa.types.is_decimal(to):
        return NUMBER, lambda texts: pc.cast(pc.replace_substring_regex(texts, r"^\+", ""), to)
    if pa.types.is_date(to):
        return DATE, lambda texts: pc.cast(texts, to)
    if pa.types.is_timestamp(to):
        if to.tz is None:
            return UNZONED, lambda texts: pc.cast(texts, to)
        return f"({ZONED})|({UNZONED})", lambda texts: _zoned(texts, to)
    raise NeedsSpark(f"text as {to}")


def _zoned(texts: pa.Array, to: pa.DataType) -> pa.Array:
    """An instant; without an offset it is UTC, which is the session's zone."""
    naive = pc.match_substring_regex(texts, UNZONED)
    if pc.all(naive).as_py() is not False:
        return pc.cast(texts, pa.timestamp("us")).cast(to)
    return pc.cast(pc.if_else(naive, pc.binary_join_element_wise(texts, "Z", ""), texts), to)
