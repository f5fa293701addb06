"""Rounds in random order, medians, spread, ratios of pairs, and what is kept of a run.

These machines are noisy: two times compared must come from the same round of the same run, so every ratio here is the
median of the ratios of pairs, never a ratio of medians.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Round = dict[str, float]
RESULTS = Path(__file__).parent / "results"


def interleaved(
    ways: Mapping[str, Callable[[], float]], count: int, dice: random.Random, say: Callable[[str], None] = print
) -> list[Round]:
    """Every way once a round, in an order of its own each time."""
    rounds = []
    for number in range(1, count + 1):
        found: Round = {}
        for name in dice.sample(list(ways), len(ways)):
            found[name] = ways[name]()
        say(f"  round {number}: " + ", ".join(f"{name} {figure(found[name])}" for name in ways))
        rounds.append({name: found[name] for name in ways})
    return rounds


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def figure(value: float) -> str:
    """Three digits that matter."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.4f}"


@dataclass(frozen=True)
class Case:
    """One thing measured in several ways, over several rounds."""

    name: str
    unit: str
    rounds: list[Round]

    @property
    def ways(self) -> list[str]:
        return list(self.rounds[0])

    def median(self, way: str) -> float:
        return statistics.median(found[way] for found in self.rounds)

    def spread(self, way: str) -> tuple[float, float]:
        values = [found[way] for found in self.rounds]
        return min(values), max(values)

    def ratio(self, way: str, other: str) -> float:
        """Of pairs: the median of each round's own ratio."""
        return statistics.median(found[way] / found[other] for found in self.rounds)

    def best(self, among: Iterable[str]) -> str | None:
        """The one with the highest median, if any of them took part."""
        return max((way for way in among if way in self.ways), key=self.median, default=None)


@dataclass(frozen=True)
class Check:
    """A figure and what the goal asks of it. `moonshot`: a wish, which does not count against the goal."""

    what: str
    figure: float
    bar: float
    sense: str  # "at least" or "at most"
    unit: str = ""
    moonshot: bool = False

    @property
    def met(self) -> bool:
        return self.figure >= self.bar if self.sense == "at least" else self.figure <= self.bar


@dataclass
class Result:
    """All that is kept of one goal's run."""

    goal: int
    title: str
    cases: list[Case]
    checks: list[Check]
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # over time: seconds, value
    line_unit: str = ""
    left_out: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return all(check.met for check in self.checks if not check.moonshot)

    def save(self, folder: Path = RESULTS) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"goal{self.goal}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Result:
        kept = json.loads(path.read_text())
        cases = [Case(**case) for case in kept.pop("cases")]
        return cls(cases=cases, checks=[Check(**check) for check in kept.pop("checks")], **kept)


@dataclass(frozen=True)
class Run:
    """What a goal is given: how large, which rounds, whose peers, and the dice."""

    size: str  # tiny (the tests), quick or full
    rounds: int
    peers: bool
    seed: int
    held: int = 90  # seconds that goal 4 holds its transaction, at full size
    embedded: Any = None  # a server that runs already; by default each goal has its own

    @property
    def dice(self) -> random.Random:
        return random.Random(self.seed)

    def of(self, tiny: Any, quick: Any, full: Any) -> Any:
        return {"tiny": tiny, "quick": quick, "full": full}[self.size]

    def interleaved(self, ways: Mapping[str, Callable[[], float]], rounds: int | None = None) -> list[Round]:
        return interleaved(ways, rounds or self.rounds, self.dice)


def keep(name: str, found: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """What is no goal's result, as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def surroundings() -> dict[str, Any]:
    """Whatever else the machine does is in the numbers, too."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": round(os.getloadavg()[0], 2)}


def measured(run: Run, goal: Callable[[Run], Result]) -> Result:
    """The goal's result, with what a reader must know to judge it."""
    about = surroundings()
    began = time.monotonic()
    result = goal(run)
    about |= {
        "load_after": round(os.getloadavg()[0], 2),
        "seconds": round(time.monotonic() - began),
        "size": run.size,
        "rounds": run.rounds,
        "seed": run.seed,
        "peers": run.peers,
    }
    result.about = {**about, **result.about}
    return result


def table(results: Sequence[Result]) -> list[list[str]]:
    """A row per check: goal, what, figure, what is asked, met or not."""
    return [
        [
            f"{result.goal}. {result.title}",
            check.what,
            f"{figure(check.figure)}{check.unit}",
            f"{check.sense} {figure(check.bar)}{check.unit}",
            ("met" if check.met else "not met") + (" (a wish)" if check.moonshot else ""),
        ]
        for result in results
        for check in result.checks
    ]
