"""Writes docs/scaling.md from benchmarks/results/simulation.json and ledger.json, and benchmarks/scaling_notes.md: the
figures and the arithmetic are made here, the words are kept there."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.harness import RESULTS, figure

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
NOTES = Path(__file__).with_name("scaling_notes.md")
BATCH = 100
HOUR = 3600


def page(folder: Path = RESULTS) -> str:
    simulation = json.loads((folder / "simulation.json").read_text())
    ledger = json.loads((folder / "ledger.json").read_text())
    return Template(NOTES.read_text()).substitute(
        sizing="\n".join(_sizing(simulation["sizes"], ledger)),
        replay="\n".join(_replay(simulation["steps"])),
        ledger="\n".join(_ledger(ledger)),
        **_paper(simulation, ledger),
        **_about("simulation", simulation),
        **_about("ledger", ledger),
        seconds=figure(simulation["seconds"]),
        batch_seconds=figure(simulation["batch_seconds"]),
        known=f"{ledger['known']:,}",
    )


def _sizing(sizes: dict[str, Any], ledger: dict[str, Any]) -> Iterator[str]:
    yield "| what | of | costs |"
    yield "|---|---|---|"
    for what, many in sizes["connections"].items():
        yield f"| connections | {what} | {many} |"
    yield f"| CPU of Postgres | a file submitted | {sizes['submit_server_us_a_file']} µs |"
    yield f"| CPU of the process that submits | a file submitted | {sizes['submit_client_us_a_file']} µs |"
    yield f"| CPU of Postgres | a batch, claim to finish | {sizes['work_server_ms_a_batch']} ms |"
    yield f"| CPU of the worker, Spark aside | a batch, claim to finish | {sizes['work_client_ms_a_batch']} ms |"
    yield f"| WAL | a file submitted | {sizes['submit_wal_bytes_a_file']:,} bytes |"
    yield f"| WAL | a batch, claim to finish | {sizes['work_wal_bytes_a_batch']:,} bytes |"
    disk = ledger["disk_mb_per_million"]
    yield f"| disk | a million files: the ledger's rows | {disk['heap']} MB |"
    yield f"| disk | a million files: the ledger's indexes, freshly built | {disk['indexes']} MB |"
    grown = sizes["disk_mb_a_million_files"]
    yield f"| disk | a million files: rows and indexes as they grow | {grown['file']} MB |"
    yield f"| disk | a million files: their batches and attempts | {round(grown['batch'] + grown['attempt'], 1)} MB |"


def _replay(steps: list[dict[str, Any]]) -> Iterator[str]:
    yield "| files an hour | submitted | batches done | left over | wait p50 | p99 | leases | Postgres | ours | WAL | |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for step in steps:
        yield (
            f"| {step['hourly']:,} | {step['submitted']:,} | {step['batches_committed']:,} | {step['batches_left']:,} "
            f"| {figure(step['wait_p50_ms'])} ms | {figure(step['wait_p99_ms'])} ms | {step['slots_busy']} "
            f"| {step['cores_of_postgres']:.2f} cores | {step['cores_of_ours']:.2f} cores "
            f"| {step['wal_mb_a_second']} MB/s "
            f"| {'kept up' if step['kept_up'] else 'fell behind'} |"
        )


def _ledger(found: dict[str, Any]) -> Iterator[str]:
    full = f"{found['known']:,} known"
    yield f"| what | none known | {full} | ratio of pairs |"
    yield "|---|---|---|---|"
    for name, key, unit in (("submit of 10,000 new files", "submit", "s"), ("claim of ten", "claim", "ms")):
        none, many = (statistics.median(one[way] for one in found[key]) for way in ("none known", full))
        ratio = statistics.median(one[full] / one["none known"] for one in found[key])
        yield f"| {name} | {figure(none)} {unit} | {figure(many)} {unit} | {figure(ratio)}× |"
    pruned = found["prune"]
    yield ""
    yield "| while half of it is pruned in steps | median | most |"
    yield "|---|---|---|"
    for name, key, unit in (
        (f"a step of {pruned['files_a_step']:,} files", "step_seconds", "s"),
        ("a submit of 100 files, before", "submit_of_100_alone_ms", "ms"),
        ("a submit of 100 files, beside the steps", "submit_of_100_beside_ms", "ms"),
    ):
        yield f"| {name} | {figure(pruned[key]['median'])} {unit} | {figure(pruned[key]['most'])} {unit} |"


def _paper(simulation: dict[str, Any], ledger: dict[str, Any]) -> dict[str, str]:
    """A million files an hour, and a billion in the ledger."""
    sizes, disk = simulation["sizes"], ledger["disk_mb_per_million"]
    grown = sizes["disk_mb_a_million_files"]
    file_us = sizes["submit_server_us_a_file"] + 1000 * sizes["work_server_ms_a_batch"] / BATCH
    wal = sizes["submit_wal_bytes_a_file"] + sizes["work_wal_bytes_a_batch"] / BATCH
    batches = 1e6 / BATCH
    million = sum(grown[name] for name in ("file", "batch", "attempt", "execution"))
    return {
        "file_us": figure(file_us),
        "cores": figure(1e6 * file_us / 1e6 / HOUR),
        "wal_rate": figure(1e6 * wal / HOUR / 2**20),
        "wal_day": figure(24e6 * wal / 2**30),
        "disk_day": figure(24 * million / 1024),
        "batches_second": figure(batches / HOUR),
        "slots": figure(batches * simulation["batch_seconds"] / HOUR),
        "core_hourly": f"{round(HOUR * 1e6 / file_us / 1e6):,} million",
        "keys_hours": figure(100_000 / batches),
        "keys_hours_large": figure(100_000 / (1e6 / 1000)),
        "billion_heap": figure(disk["heap"] * 1000 / 1024),
        "billion_indexes": figure(1000 * max(disk["indexes"], grown["file"] - disk["heap"]) / 1024),
        "billion_days": figure(1e9 / 24e6),
        "reads": figure(1e6 / HOUR),
    }


def _about(name: str, found: dict[str, Any]) -> dict[str, str]:
    about = dict(found["about"])
    postgres = about.pop("postgres")
    said = [f"{key.replace('_', ' ')} {value}" for key, value in about.items()]
    return {f"{name}_about": ", ".join(said + [f"{key} {value}" for key, value in postgres.items()])}


def main() -> None:
    PAGE.write_text(page())
    print(PAGE.relative_to(PAGE.parents[1]))


if __name__ == "__main__":
    main()
