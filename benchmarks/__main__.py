"""`make bench`: every goal, or one; prints the table and keeps the results.

python -m benchmarks [--goal 1] [--quick] [--rounds 3] [--seed 7] [--held 300] [--no-peers] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import RESULTS, Result, Run, figure, measured, table

GOALS = {1: "claim_finish", 2: "submit", 3: "depth", 4: "held_horizon", 5: "wakeup", 6: "recovery", 7: "end_to_end",
         8: "fan_in", 9: "growth"}  # fmt: skip


def measure(goal: int, run: Run) -> Result:
    found: Callable[[Run], Result] = import_module(f"benchmarks.{GOALS[goal]}").measure
    return measured(run, found)


def show(results: list[Result], console: Console) -> None:
    figures = Table("goal", "measured", "way", "median", "from", "to", "ours to it", title="Medians of the rounds")
    for result in results:
        for case in result.cases:
            for way in case.ways:
                low, high = case.spread(way)
                ratio = figure(case.ratio("ours", way)) + "×" if "ours" in case.ways and way != "ours" else ""
                row = (str(result.goal), case.name, way, f"{figure(case.median(way))} {case.unit}")
                figures.add_row(*row, figure(low), figure(high), ratio)
    console.print(figures)
    judged = Table("goal", "what", "figure", "asked", "", title="The goals")
    for row in table(results):
        judged.add_row(*row)
    console.print(judged)
    for line in dict.fromkeys(line for result in results for line in result.left_out):
        console.print(f"Left out: {line}")


def main() -> None:
    asked = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    asked.add_argument("--goal", type=int, choices=sorted(GOALS), action="append")
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--rounds", type=int)
    asked.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked.add_argument("--held", type=int, help="seconds that goal 4 holds its transaction at full size")
    asked.add_argument("--no-peers", action="store_true")
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    size = "quick" if given.quick else "full"
    held = given.held or (90 if given.goal else 300)
    run = Run(size, given.rounds or (2 if given.quick else 3), not given.no_peers, given.seed, held)
    # A quick look must not replace what the page is made of.
    out = given.out or (Path("build/bench") if given.quick else RESULTS)
    print(f"size {size}, {run.rounds} rounds, seed {run.seed}; a Postgres of its own for each goal, durable settings")
    results, began = [], time.monotonic()
    for goal in given.goal or sorted(GOALS):
        print(f"\nGoal {goal}: {GOALS[goal]} ({time.monotonic() - began:.0f} s so far)", flush=True)
        results.append(measure(goal, run))
        print(f"  Postgres: {results[-1].about.get('postgres')}")
        results[-1].save(out)
    show(results, Console(width=160) if not sys.stdout.isatty() else Console())
    print(f"kept in {out}; `make performance` draws docs/performance.md from {RESULTS}")


if __name__ == "__main__":
    main()
