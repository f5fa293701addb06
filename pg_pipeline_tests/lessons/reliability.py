"""Writes docs/reliability.md: which test shows which case, and where processes are killed.

python -m pg_pipeline_tests.lessons.reliability
"""

from __future__ import annotations

import ast
import json
import re

from pg_pipeline_tests.crash.stories import BY_POINT, ELSEWHERE
from pg_pipeline_tests.helpers import PROJECT
from pg_pipeline_tests.lessons.guards import GUARDS
from pg_pipeline_tests.verify.check import BROKEN, SAFE

RESULTS = PROJECT / "pg_pipeline_tests" / "storm" / "results.jsonl"
LOADS = PROJECT / "pg_pipeline_tests" / "storm" / "load.jsonl"
PAGE = PROJECT / "docs" / "reliability.md"
_NAME = re.compile(r"test_(?:lesson_)?([a-e]\d+)_")

CASES = {
    "A1": "a worker dies between taking a task and storing its result",
    "A2": "processing raises an error",
    "A3": "the result is stored, and the answer is lost",
    "A4": "the same request or effect arrives twice",
    "A5": "malformed work",
    "A6": "work that is refused, or of an unknown kind",
    "A7": "work of a worker that is gone, without any restart",
    "A8": "single files of a batch are bad",
    "B1": "a retry after a lost answer sends everything again",
    "B2": "a retry meets an entry that was consumed meanwhile",
    "B3": "a limit was tightened between call and retry",
    "B4": "two releases at once, over one schema",
    "C1": "a poisoned task must say whose it was",
    "C2": "the connection was reaped during a long task",
    "C3": "handing a claim back meets a dead connection",
    "C4": "a task takes longer than its lease",
    "C5": "the memory of what is done is collected early",
    "C6": "a callback is delivered again",
    "C7": "an execution that was stopped tells whoever waits",
    "C8": "batches settle at the same moment",
    "D1": "a marker says done before the work is",
    "D2": "an execution is run again over its old markers",
    "D3": "death between the last batch and the callback",
    "D4": "death in the middle of the fan-out",
    "D5": "settling a batch fails",
    "D6": "what attempts left behind",
    "D7": "negative numbers",
    "D8": "the callback's priority and tenant",
    "D9": "a test that passes for the wrong reason",
    "D10": "a test that did not run",
    "E1": "two replays of one dead letter",
    "E2": "replay-all against replay",
    "E3": "a dead letter keeps everything",
}


def tests_by_case() -> dict[str, list[str]]:
    """Case to the tests that cite it in their name, wherever they are."""
    found: dict[str, list[str]] = {case: [] for case in CASES}
    for path in sorted((PROJECT / "pg_pipeline_tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := _NAME.match(node.name)):
                found.setdefault(match[1].upper(), []).append(f"{path.relative_to(PROJECT)}::{node.name}")
    return {case: sorted(tests) for case, tests in found.items()}


def text() -> str:
    lines = [
        "# Reliability",
        "",
        "What went wrong in real systems, and the tests that show that it does not here. This page is generated from",
        "the tests (`python -m pg_pipeline_tests.lessons.reliability`), and a test keeps it equal to them.",
        "",
        "## Cases",
        "",
        "| case | what happens | tests |",
        "|---|---|---|",
    ]
    for case, tests in tests_by_case().items():
        links = "<br>".join(_link(test) for test in tests)
        lines.append(f"| {case} | {CASES.get(case, '')} | {links} |")
    lines += [
        "",
        "## Where processes are killed",
        "",
        "A real process is killed (`kill -9`) at each failpoint; `:n` is the n-th pass. Then its request is asked",
        "again, another worker goes on, and nothing is lost or doubled, the audit is clean, the callback and its",
        "effects happened once. `make test` runs a sample, `make test-all` every one.",
        "",
        "| failpoint | the process was about to |",
        "|---|---|",
    ]
    lines += [f"| `{point}` | {BY_POINT[point].verb.replace('_', ' ')} |" for point in sorted(BY_POINT)]
    lines += [f"| `{point}` | migrate |" for point in sorted(ELSEWHERE)]
    lines += [
        "",
        "## Guards",
        "",
        "Each guard is taken out of a copy of the code, and the test beside it must then fail (`make test-all`).",
        "",
        "| without | fails |",
        "|---|---|",
    ]
    lines += [f"| {guard.name} | {_link(guard.test)} |" for guard in GUARDS]
    lines += [
        "",
        "## Model",
        "",
        "The protocol as a [model](../sql/model/pipeline.pml), explored in every order of its steps with spin",
        "(`make verify`). Within these bounds it is proved; with a guard taken out, a counterexample is found.",
        "",
        "| bounds | |",
        "|---|---|",
    ]
    lines += [f"| {bounds.name} | proved |" for bounds in SAFE]
    lines += ["", "| without the guard | what then happens |", "|---|---|"]
    lines += [f"| {variant.name} | {variant.harm} |" for variant in BROKEN]
    lines += [
        "",
        "## Storm",
        "",
        "`make storm` kills workers, submitters, sessions, Postgres and the recovery itself at random, and a Spark",
        "worker. Then the rows that plain Python makes of the input files are compared with the rows of the sink,",
        "and the bills of a receiver with the same computation. Kept runs (`--record`):",
        "",
        "| seed | seconds | Spark | strikes | deliveries | re-runs and retakes | rows | attempts lost | found wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in RESULTS.read_text().splitlines():
        run = json.loads(line)
        lost = run["attempts"].get("lost", 0) + run["attempts"].get("fenced", 0)
        cells = (
            *(run["seed"], f"{run['seconds']:.0f}", "yes" if run["spark"] else "no", sum(run["strikes"].values())),
            *(run["deliveries"], run["generations"] - run["deliveries"], run["rows"], lost),
            len(run["wrong"]) or "nothing",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join([*lines, *_loads()]) + "\n"


def _loads() -> list[str]:
    lines = [
        "",
        "## Load held",
        "",
        "`python -m pg_pipeline_tests.storm.load` sends tasks at a steady rate for minutes while worker processes are",
        "killed (`kill -9`) and sessions ended at random. Each task's effect is a row of a table that would take any",
        "number of them; what was sent is known outside, and each must be there once. Kept runs (`--record`), other",
        "work beside them on two cores; a wait is from before the send to the effect, its p99 what a kill costs:",
        "",
        "| seed | tasks a second | seconds | workers | sent | workers killed | sessions ended | attempts lost "
        "| done a second | wait p50, p99 | found wrong |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in LOADS.read_text().splitlines():
        run = json.loads(line)
        cells = (
            *(run["seed"], run["rate"], f"{run['seconds']:.0f}", run["workers"], run["sent"], run["kills"]),
            *(run["sessions_ended"], run["attempts_lost"], f"{run['done_per_second']:.0f}"),
            f"{run['wait_p50_ms']:.0f} ms, {run['wait_p99_ms']:.0f} ms",
            len(run["wrong"]) or "nothing",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[`{name.partition('[')[0]}`](../{path})"


if __name__ == "__main__":
    PAGE.write_text(text())
