"""Goal 7. From submit to callback, against one plain Spark job, Structured Streaming and Spark's JDBC writer.

Measured by spark_batches.py in a process of its own; here it is only called and shown.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Check, Result, Run

BARS = {  # a way of spark_batches.py, by words of its name: what is asked of its ratio to the one job
    ("arrow",): ("the Arrow reader", 0.85),
    ("spark",): ("Spark's reader", 1.10),
    ("kill",): ("with a kill halfway", 1.3),
}


def measure(run: Run) -> Result:
    with tempfile.TemporaryDirectory(prefix="pgp-bench-") as folder:
        out = Path(folder) / "spark.json"
        files, rows = run.of(4, 20, 1000), run.of(50, 500, 4000)  # a row has some 260 bytes
        command = [sys.executable, "-m", "benchmarks.spark_batches", "batches", "sink", f"--out={out}"]
        command += [f"--files={files}", f"--rows={rows}", f"--rounds={run.rounds if run.size == 'full' else 1}"]
        subprocess.run(command, check=True)
        return shown(json.loads(out.read_text()), {"files": files, "rows": rows})


def shown(found: dict[str, Any], about: dict[str, Any]) -> Result:
    cases = []
    for name, part in found.items():
        if "seconds" in part:
            cases.append(Case(name, "s", part.get("rounds") or [part["seconds"]]))
    checks = []
    batches = next((case for case in cases if "one job" in case.ways), None)
    if batches:
        ours = [way for way in batches.ways if way != "one job" and "stream" not in way.lower()]
        for way in ours:
            words = [key for key in BARS if all(word in way.lower() for word in key)]
            what, bar = BARS[words[-1]] if words else (way, 1.10)
            checks.append(
                Check(f"to one plain job, {what} ({way})", batches.ratio(way, "one job"), bar, "at most", "×")
            )
        streams = [way for way in batches.ways if "stream" in way.lower()]
        for stream in streams:
            best = min(ours, key=batches.median)
            what = f"to Structured Streaming ({best})"
            checks.append(Check(what, batches.ratio(best, stream), 1, "at most", "×"))
    return Result(7, "End to end", cases, checks, about=about)
