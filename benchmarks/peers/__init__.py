"""Queues that others made, each through its own documented interface, in one small module each.

They come from the `bench` extra. Not all can be had: PgQue's Python client is on PyPI, but no package carries its SQL.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import metadata
from typing import Protocol

from benchmarks.database import Server

NAMES = {"pgmq": "pgmq", "pgqueuer": "pgqueuer", "awa": "awa-pg", "procrastinate": "procrastinate", "chancy": "chancy",
         "dbos": "dbos"}  # fmt: skip
LEFT_OUT = ["PgQue: its client is on PyPI, but no package of PyPI, Debian or npm carries its SQL."]


class Peer(Protocol):
    """A queue in a database of its own. A task carries 200 bytes, and doing it is doing nothing."""

    share: float  # of our own count of tasks: the slow ones get fewer, so that a round stays short

    def enqueue(self, count: int) -> None: ...

    def drain(self, n: int, workers: int, count: int) -> float:
        """Tasks a second, from the first to the last of `count` that are waiting; n at a time, so many workers."""

    def wake(self, rate: float, count: int) -> list[float]:
        """Seconds from before a task is sent to when its handler begins, for `count` tasks, `rate` a second."""

    def close(self) -> None: ...


def peer(name: str, dsn: str) -> Peer:
    made: Peer = importlib.import_module(f"benchmarks.peers.{name}").Queue(dsn)
    return made


def peers(server: Server, stack: ExitStack, names: Sequence[str] = tuple(NAMES)) -> dict[str, Peer]:
    """All of them, closed with the stack."""
    made = {}
    for name in names:
        made[name] = peer(name, server.new())
        stack.callback(made[name].close)
    return made


def versions() -> dict[str, str]:
    return {package: metadata.version(package) for package in NAMES.values()}
