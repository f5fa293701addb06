"""The numbers behind the report's pictures: where each bar begins and how long it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pg_pipeline.coordination.partitions import BatchReport

WIDTH = 1000.0
ROW = 14.0
BARS = 40
DRAWN = 5000  # attempts that the timeline shows; more are counted, not drawn


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle with what it says when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    says: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One worker's part of the timeline."""

    name: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    bars: Sequence[Bar] = ()
    lanes: Sequence[Lane] = ()
    height: float = 0.0
    low: str = ""
    high: str = ""
    top: str = ""
    left_out: int = 0


def timeline(attempts: Sequence[Mapping[str, Any]], now: datetime) -> Chart:
    """A lane per worker, in order of appearance; attempts that overlap are stacked."""
    if not attempts:
        return Chart()
    drawn = sorted(attempts, key=lambda a: a["claimed_at"])[:DRAWN]
    start = drawn[0]["claimed_at"]
    end = max(a["ended_at"] or now for a in drawn)
    scale = WIDTH / max((end - start).total_seconds(), 0.001)
    workers: dict[str, list[Mapping[str, Any]]] = {}
    for attempt in drawn:
        workers.setdefault(str(attempt["worker_name"] or attempt["worker"]), []).append(attempt)
    bars: list[Bar] = []
    lanes: list[Lane] = []
    y = 0.0
    for name, mine in workers.items():
        free: list[datetime] = []  # when each row of the lane is free again
        for attempt in mine:
            ended = attempt["ended_at"] or now
            row = next((n for n, until in enumerate(free) if until <= attempt["claimed_at"]), len(free))
            free[row : row + 1] = [ended]
            x = (attempt["claimed_at"] - start).total_seconds() * scale
            width = max((ended - attempt["claimed_at"]).total_seconds() * scale, 1.5)
            outcome = attempt["outcome"] or "living"
            bars.append(Bar(x, y + row * ROW, width, ROW - 3, outcome, _says(attempt, ended)))
        lanes.append(Lane(name, y, len(free) * ROW))
        y += len(free) * ROW + 6
    return Chart(bars, lanes, y, f"{start:%H:%M:%S}", f"{end:%H:%M:%S}", left_out=len(attempts) - len(drawn))


def throughput(batches: Sequence[BatchReport]) -> Chart:
    """Rows that became visible, over time."""
    done = [(b.committed_at, b.rows_out or 0) for b in batches if b.committed_at is not None]
    if not done:
        return Chart()
    start, end = min(at for at, _ in done), max(at for at, _ in done)
    slot = max((end - start).total_seconds() / BARS, 0.001)
    sums = [0] * BARS
    for at, rows in done:
        sums[min(int((at - start).total_seconds() / slot), BARS - 1)] += rows
    says = [f"{n:,} rows in {slot:.1f} s ({n / slot:,.0f} a second)" for n in sums]
    return _columns(sums, says, f"{start:%H:%M:%S}", f"{end:%H:%M:%S}", f"{max(sums):,} rows")


def histogram(seconds: Sequence[float]) -> Chart:
    """How many committed batches took how long."""
    if not seconds:
        return Chart()
    low, high = min(seconds), max(seconds)
    count = max(1, min(BARS, math.ceil(math.sqrt(len(seconds)) * 2)))
    slot = max((high - low) / count, 1e-6)
    sums = [0] * count
    for value in seconds:
        sums[min(int((value - low) / slot), count - 1)] += 1
    says = [f"{n} batches of {low + i * slot:.2f} to {low + (i + 1) * slot:.2f} s" for i, n in enumerate(sums)]
    return _columns(sums, says, f"{low:.2f} s", f"{high:.2f} s", f"{max(sums)} batches")


def _columns(sums: Sequence[int], says: Sequence[str], low: str, high: str, top: str) -> Chart:
    height, width, highest = 120.0, WIDTH / len(sums), max(*sums, 1)
    bars = [
        Bar(n * width + 1, height * (1 - value / highest), width - 2, height * value / highest, "column", says[n])
        for n, value in enumerate(sums)
    ]
    return Chart(bars, (), height, low, high, top)


def _says(attempt: Mapping[str, Any], ended: datetime) -> str:
    what = attempt["kind"] if attempt["batch"] is None else f"batch {attempt['batch']}"
    took = (ended - attempt["claimed_at"]).total_seconds()
    error = f": {attempt['error']}" if attempt["error"] else ""
    return (
        f"{what}, generation {attempt['generation']}, attempt {attempt['number']}: "
        f"{attempt['outcome'] or 'at work'} after {took:.1f} s{error[:300]}"
    )
