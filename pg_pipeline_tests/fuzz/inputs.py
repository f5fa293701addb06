"""What users, files and other programs hand in: odd text, odd numbers, odd JSON, and almost-right requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

# NUL; half characters, as os.listdir gives them for names that are not UTF-8; what SQL, JSON and terminals mind.
ODD = ["\x00", "\udc80", "\ud800", "'", '"', "\\", "\\u0000", "%s", "{}", "$$", ";--", "\n", "\r", "\x1b[31m", "\u202e"]
texts = st.one_of(
    st.text(st.characters(), max_size=30),
    st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=5)), max_size=6).map("".join),
    st.sampled_from(["", " ", ".", "..", "/", "null", "NaN", "-1", "0", "x" * 600, "ü" * 300]),
)
numbers = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 1, 2**15, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400]),
    st.floats(),
    st.booleans(),
)
scalars = st.one_of(st.none(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


def almost(*needed: str, **right: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the right fields; in some of them a field is missing or wrong."""
    good = st.fixed_dictionaries(
        {name: right[name] for name in needed}, optional={k: v for k, v in right.items() if k not in needed}
    )
    wrong = st.dictionaries(st.sampled_from(sorted(right)), values, max_size=2)
    return st.one_of(good, good, st.builds(lambda fine, odd: {**fine, **odd}, good, wrong), wrong)


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """The same inputs each time, so that a change is red for what it did and not by chance; TEST_FUZZ=20 tries
    twenty times as many, others each time."""
    times = int(os.environ.get("TEST_FUZZ", "0"))
    return settings(
        max_examples=examples * (times or 1),
        deadline=None,
        database=None,
        derandomize=not times,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
