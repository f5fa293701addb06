"""Checks the protocol's model, `sql/model/pipeline.pml`, with spin: whole it must be proved, and with a guard taken out
a counterexample must be found, for the reason that the guard is there.

python -m pg_pipeline_tests.verify.check
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from pg_pipeline_tests.helpers import PROJECT

MODEL = PROJECT / "sql" / "model" / "pipeline.pml"
MEGABYTES = 2000
SECONDS = 300


@dataclass(frozen=True)
class Bounds:
    """A whole protocol, small: what there is of each, and how much may go wrong."""

    name: str
    flags: str
    progress: bool = False  # proved as well that no run goes on for ever


@dataclass(frozen=True)
class Broken:
    """Bounds that are proved, with a guard taken out; the harm shows as one of the assertions `caught_by`."""

    name: str
    flag: str
    bounds: str
    harm: str
    caught_by: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    error: str | None  # the assertion, or None: every order of steps was explored and nothing found
    states: int


SAFE = (
    Bounds("two workers, two batches, a reaper, three faults", "-DFAULTS=3 -DREAPER"),
    Bounds("strict, two people at the dead letters", "-DFAULTS=2 -DOPERATORS=2"),
    Bounds("partial, two people at the dead letters", "-DFAULTS=2 -DOPERATORS=2 -DPOLICY=PARTIAL"),
    Bounds("a task of no execution, two people", "-DFAULTS=2 -DOPERATORS=2 -DBATCHES=1 -DJOBS=1"),
    Bounds("abort, a cancel and a reaper", "-DFAULTS=2 -DOPERATORS=1 -DPOLICY=ABORT -DCANCEL -DREAPER"),
    Bounds("a re-run and a cancel", "-DFAULTS=2 -DGENERATIONS=2 -DCANCEL"),
    Bounds("two re-runs and a cancel", "-DFAULTS=1 -DGENERATIONS=3 -DCANCEL"),
    Bounds("a re-run, partial, a person", "-DFAULTS=2 -DGENERATIONS=2 -DOPERATORS=1 -DPOLICY=PARTIAL"),
    Bounds("progress: strict, a person, a cancel", "-DFAULTS=2 -DOPERATORS=1 -DCANCEL", progress=True),
    Bounds("progress: a re-run and a reaper", "-DFAULTS=1 -DGENERATIONS=2 -DREAPER", progress=True),
)

_WORK, _LETTERS, _JOB, _CANCEL, _RERUN = (SAFE[n].name for n in (0, 1, 3, 5, 9))

BROKEN = (
    Broken("no token", "-DNO_TOKEN", _WORK, "a zombie commits", ("holder[s]==tok",)),
    Broken("marker before work", "-DMARKER_FIRST", _WORK, "a batch is settled without rows", ("rows[",)),
    Broken("callback after commit", "-DCALLBACK_AFTER_COMMIT", _WORK, "the callback is never made", ("n<3",)),
    Broken("barrier without its lock", "-DBARRIER_UNLOCKED", _WORK, "the barrier never comes to zero", ("n<3",)),
    Broken(
        "reaper that trusts expiry", "-DREAPER_TRUSTS_EXPIRY", _WORK, "a living attempt's output is gone", ("written",)
    ),
    Broken("unlocked replay", "-DUNLOCKED_REPLAY", _JOB, "a dead letter comes back twice", ("job_done",)),
    Broken("reset epoch", "-DRESET_EPOCH", _LETTERS, "a zombie's token is current again", ("holder[s]==tok",)),
    Broken("reset generation", "-DRESET_GENERATION", _RERUN, "rows are doubled", ("rows[",)),
    Broken(
        "abort that skips a finishing batch",
        "-DABORT_SKIPS_FINISHING",
        _CANCEL,
        "a batch is nowhere",
        ("violated 0",),
    ),
    Broken(
        "finish that does not look at the execution",
        "-DFINISH_BLIND",
        _CANCEL,
        "an ended execution shows rows",
        ("state!=2",),
    ),
)


def explore(flags: str, *, progress: bool = False) -> Found:
    """Every order of steps within these bounds, or the first error."""
    with tempfile.TemporaryDirectory(prefix="pgp-") as folder:
        _run(["spin", "-a", *flags.split(), str(MODEL)], folder)
        checked = "-DNP" if progress else "-DSAFETY"
        _run(["gcc", "-O2", "-w", checked, "-DCOLLAPSE", f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", "-m1000000", "-n", *(["-l"] if progress else [])], folder)
    error = re.search(r"^pan:1: (.*?) \(at depth", said, re.MULTILINE)
    counts = re.search(r"errors: (\d+)\s+(\d+) states, stored", said)
    whole = counts is not None and "Warning: Search not completed" not in said and "too small" not in said
    if error is None and not (whole and counts is not None and counts[1] == "0"):
        raise RuntimeError(f"spin did not explore everything: {said}")
    return Found(error[1] if error else None, int(counts[2]) if counts else 0)


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")
    return done.stdout


def prove(bounds: Bounds) -> Found:
    return explore(bounds.flags, progress=bounds.progress)


def break_(variant: Broken) -> Found:
    (bounds,) = [one for one in SAFE if one.name == variant.bounds]
    return explore(f"{bounds.flags} {variant.flag}")


def as_expected(variant: Broken, found: Found) -> bool:
    return found.error is not None and any(text in found.error for text in variant.caught_by)


def main() -> int:
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing:
        print(f"The model is checked with {' and '.join(missing)}: install it (a Debian package).", file=sys.stderr)
        return 1
    good = True
    print(f"{'variant':50}{'expected':16}{'found':36}{'states':>10}")
    for bounds in SAFE:
        found = prove(bounds)
        good &= found.error is None
        print(f"{bounds.name:50}{'proof':16}{found.error or 'proved':36}{found.states:10,}", flush=True)
    for variant in BROKEN:
        found = break_(variant)
        caught = as_expected(variant, found)
        good &= caught
        what = variant.harm if caught else found.error or "nothing"
        print(f"{variant.name:50}{'counterexample':16}{what:36}{found.states:10,}", flush=True)
    print("As expected." if good else "NOT as expected.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
