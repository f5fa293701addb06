"""Partition keys: never reused, and without the commas that Dagster splits ranges at.

A batch is `20261118-a1b2~00017`, its execution `20261118-a1b2`. A key that was removed from Dagster and must come
back carries its generation (`…~00017~g2`): the old one would bring its old status back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dagster as dg

from pg_pipeline.coordination import partitions
from pg_pipeline.coordination.database import Database

_KEY = re.compile(r"^(?P<execution>\d{8}-[0-9a-f]+)(?:~(?P<number>\d{5,}))?(?:~g(?P<generation>\d+))?$")
CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class Key:
    """What a partition key names; `number` is None for an execution."""

    execution: str
    number: int | None = None
    generation: int | None = None


def batch_key(execution: str, number: int, generation: int | None = None) -> str:
    return f"{execution}~{number:05}" + (f"~g{generation}" if generation else "")


def execution_key(execution: str, generation: int | None = None) -> str:
    return execution + (f"~g{generation}" if generation else "")


def parse(key: str) -> Key:
    found = _KEY.match(key)
    if found is None:
        raise dg.Failure(
            f"{key!r} is not a partition key of pg_pipeline: they look like 20261118-a1b2~00017.", allow_retries=False
        )
    number, generation = found["number"], found["generation"]
    return Key(found["execution"], None if number is None else int(number), int(generation) if generation else None)


def batches_partitions(pipeline: str) -> dg.DynamicPartitionsDefinition:
    return dg.DynamicPartitionsDefinition(name=f"{pipeline}_batches")


def executions_partitions(pipeline: str) -> dg.DynamicPartitionsDefinition:
    return dg.DynamicPartitionsDefinition(name=f"{pipeline}_executions")


class Registrar:
    """Puts the keys of executions into Dagster, once per execution and process, before anything is told of them.

    Batches go in first and the execution last: an execution that is listed has all the batches it had then.
    """

    def __init__(self, instance: dg.DagsterInstance, db: Database) -> None:
        self._instance = instance
        self._db = db
        self._keys: dict[tuple[str, int], dict[int, str]] = {}

    def execution(self, pipeline: str, execution: str, generation: int) -> str:
        """The key under which this generation of the execution is shown; registers its batches too."""
        return self._register(pipeline, execution, generation)[0]

    def batch(self, pipeline: str, execution: str, generation: int, number: int) -> str:
        known = self._keys.get((execution, generation), {})
        if number not in known:
            self._register(pipeline, execution, generation)
            known = self._keys[(execution, generation)]
        return known[number]

    def _register(self, pipeline: str, execution: str, generation: int) -> tuple[str, Sequence[str]]:
        executions = executions_partitions(pipeline).name or ""
        batches = batches_partitions(pipeline).name or ""
        plain = execution_key(execution)
        suffix = None
        if generation > 1 and not self._instance.has_dynamic_partition(executions, plain):
            suffix = generation
        numbers = [report.number for report in partitions.batches(self._db, execution)]
        self._keys[(execution, generation)] = {n: batch_key(execution, n, suffix) for n in numbers}
        shown = execution_key(execution, suffix)
        listed = list(self._keys[(execution, generation)].values())
        self._add(batches, listed)
        self._add(executions, [shown])
        return shown, listed

    def _add(self, name: str, keys: Iterable[str]) -> None:
        """Adds what is not listed; Dagster leaves keys alone that it has."""
        wanted = list(keys)
        for start in range(0, len(wanted), CHUNK):
            self._instance.add_dynamic_partitions(name, wanted[start : start + CHUNK])
