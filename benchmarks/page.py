"""Writes docs/performance.md and its pictures from benchmarks/results: `make performance`. Nothing is typed by hand
but benchmarks/notes.md, which says what limits each goal."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.__main__ import GOALS
from benchmarks.harness import RESULTS, Result, figure, table

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "performance.md"
PICTURES = PROJECT / "docs" / "performance"
NOTES = Path(__file__).parent / "notes.md"


def results(folder: Path = RESULTS) -> list[tuple[Result, str]]:
    """Each goal's result, and the digest of the file it is in."""
    files = sorted(folder.glob("goal*.json"))
    return [(Result.load(file), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


def notes() -> dict[int, str]:
    parts = re.split(r"^## Goal (\d+)\n", NOTES.read_text(), flags=re.MULTILINE)
    return {0: parts[0].strip()} | {int(parts[n]): parts[n + 1].strip() for n in range(1, len(parts), 2)}


def page(folder: Path = RESULTS) -> str:
    return "\n".join(_page(folder)) + "\n"


def _page(folder: Path) -> Iterator[str]:
    found, said = [result for result, _ in results(folder)], notes()
    yield "# Performance"
    yield ""
    yield said[0]
    yield ""
    yield "| goal | what | figure | asked | |"
    yield "|---|---|---|---|---|"
    for row in table(found):
        yield "| " + " | ".join(row) + " |"
    for number in sorted(set(GOALS) - {result.goal for result in found}):
        yield f"| {number}. {GOALS[number].replace('_', ' ').capitalize()} | | | | no result kept yet |"
    for result in found:
        yield ""
        yield f"## {result.goal}. {result.title}"
        yield ""
        yield f"![{result.title}: medians and spread](performance/goal{result.goal}.svg)"
        yield ""
        yield from _figures(result)
        yield ""
        yield said.get(result.goal, "").strip()
        yield ""
        yield _about(result)
    left_out = list(dict.fromkeys(line for result in found for line in result.left_out))
    if left_out:
        yield ""
        yield "## Left out"
        yield ""
        yield from (f"- {line}" for line in left_out)


def _figures(result: Result) -> Iterator[str]:
    yield "| measured | way | median | from | to | ours to it |"
    yield "|---|---|---|---|---|---|"
    for case in result.cases:
        for way in case.ways:
            low, high = case.spread(way)
            ratio = f"{figure(case.ratio('ours', way))}×" if "ours" in case.ways and way != "ours" else ""
            median = f"{figure(case.median(way))} {case.unit}"
            yield f"| {case.name} | {way} | {median} | {figure(low)} | {figure(high)} | {ratio} |"


def _about(result: Result) -> str:
    about = dict(result.about)
    postgres = about.pop("postgres", {})
    said = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in about.items() if not isinstance(value, dict)
    )
    server = ", ".join(f"{name} {value}" for name, value in postgres.items())
    return f"Run: {said}." + (f" Postgres: {server}." if server else "")


def draw(result: Result, digest: str, folder: Path = PICTURES) -> Path:
    """Bars of medians with their spread, a panel a case; lines where there is a course of time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "pg_pipeline"
    import matplotlib.pyplot as plt

    panels = len(result.cases) + bool(result.lines)
    height = sum(max(1.2, 0.32 * len(case.ways) + 0.6) for case in result.cases) + (3 if result.lines else 0)
    ratios = [max(1.2, 0.32 * len(case.ways) + 0.6) for case in result.cases] + ([3.0] if result.lines else [])
    drawn, axes = plt.subplots(panels, 1, figsize=(8, height), height_ratios=ratios, squeeze=False, layout="tight")
    for axis, case in zip(axes[:, 0], result.cases, strict=False):
        ways = case.ways[::-1]
        medians = [case.median(way) for way in ways]
        spread = [case.spread(way) for way in ways]
        whiskers = [[m - low for m, (low, _) in zip(medians, spread, strict=True)],
                    [high - m for m, (_, high) in zip(medians, spread, strict=True)]]  # fmt: skip
        colours = ["#1f6feb" if way.startswith("ours") or way == "again" else "#b0b8c4" for way in ways]
        axis.barh(ways, medians, xerr=whiskers, color=colours, error_kw={"lw": 0.8, "ecolor": "#444444"})
        axis.set_title(f"{case.name} ({case.unit})", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        if max(medians) > 50 * max(min(medians), 1e-9):
            axis.set_xscale("log")
    if result.lines:
        axis = axes[-1, 0]
        for name, points in result.lines.items():
            axis.plot([at for at, _ in points], [value for _, value in points], label=name)
        axis.axvline(0, color="#888888", lw=0.8, ls="--")
        axis.set_xlabel("seconds since the transaction was opened", fontsize=8)
        axis.set_ylabel(result.line_unit, fontsize=8)
        axis.legend(fontsize=7)
        axis.tick_params(labelsize=8)
    folder.mkdir(exist_ok=True)
    path = folder / f"goal{result.goal}.svg"
    drawn.savefig(path, metadata={"Date": None, "Description": digest})
    plt.close(drawn)
    return path


def main() -> None:
    PAGE.write_text(page())
    for result, digest in results():
        print(draw(result, digest).relative_to(PROJECT))
    print(PAGE.relative_to(PROJECT))


if __name__ == "__main__":
    main()
