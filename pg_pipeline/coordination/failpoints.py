"""Named places where a test kills this process. Off, and one comparison, in normal use.

`PG_PIPELINE_FAILPOINT=finish.before_commit` kills at the first pass; `=name:3` at the third.
`PG_PIPELINE_FAILPOINT_ACTION=stop` stops the process (SIGSTOP) instead.
"""

import os
import re
import signal

_armed: dict[str, int] | None = None
_action = signal.SIGKILL


def arm(specification: str | None, action: str = "kill") -> None:
    """Arm from a comma-separated list; None disarms."""
    global _armed, _action  # noqa: PLW0603
    if not specification:
        _armed = None
        return
    _armed = {}
    for part in specification.split(","):
        name, _, count = part.partition(":")
        _armed[name.strip()] = int(count or 1)
    _action = signal.SIGSTOP if action == "stop" else signal.SIGKILL


def hit(name: str) -> None:
    if _armed is not None:
        _pass(name)


def around(statement: str, when: str) -> None:
    """The points around every single call, named after its function: `claim.after_commit`, `replay.before_call`, …"""
    if _armed is not None and (called := re.search(r"pipeline\.(\w+)\(", statement)):
        _pass(f"{called[1]}.{when}")


def _pass(name: str) -> None:
    assert _armed is not None
    left = _armed.get(name, 0)
    if left == 1:
        os.kill(os.getpid(), _action)
    _armed[name] = left - 1


arm(os.environ.get("PG_PIPELINE_FAILPOINT"), os.environ.get("PG_PIPELINE_FAILPOINT_ACTION", "kill"))
