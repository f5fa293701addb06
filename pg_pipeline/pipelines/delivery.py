"""Deliveries: what belongs together, and when it is all there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pg_pipeline.errors import ConfigurationError

_QUIET = re.compile(r"^quiet:(\d+)(s|m|min|h)$")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Delivery:
    """`folder`: closed by its `_SUCCESS`; `quiet`: all that arrived before nothing came for a while; `manifest`:
    the files that a `*.manifest` beside them names."""

    kind: Literal["folder", "quiet", "manifest"]
    quiet_seconds: int = 0

    @classmethod
    def parse(cls, text: str) -> Delivery:
        if text == "folder":
            return cls("folder")
        if text == "manifest":
            return cls("manifest")
        quiet = _QUIET.match(text) if isinstance(text, str) else None
        if quiet is None:
            raise ConfigurationError(
                f"delivery is {text!r}: use 'folder' (closed by _SUCCESS), 'manifest', "
                "or a quiet time such as 'quiet:60s'."
            )
        return cls("quiet", int(quiet[1]) * _SECONDS[quiet[2]])
