"""Goal 7. From submit to callback, against one plain Spark job, Structured Streaming and Spark's JDBC writer.

Measured by spark_batches.py and worker_overhead.py, each part in a process of its own with a Spark session of its own;
here they are called and put together.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Result, Run


def measure(run: Run) -> Result:
    files, rows = run.of(4, 20, 1000), run.of(50, 500, 4000)  # 4,000 rows make 1 MB
    sink_rows, batches = run.of(1000, 100_000, 1_000_000), run.of(2, 20, 200)
    spark = ["benchmarks.spark_batches", f"--rows={rows}", f"--sink-rows={sink_rows}", f"--files={files}"]
    parts = [
        [*spark, "batches", "killed"],
        [*spark, "sink"],
        [*spark, "bad"],
        ["benchmarks.worker_overhead", f"--batches={batches}"],
    ]
    found = []
    with tempfile.TemporaryDirectory(prefix="pgp-bench-") as folder:
        for number, part in enumerate(parts):
            out = Path(folder) / str(number)
            rounds = [f"--rounds={run.rounds}", f"--seed={run.seed}", f"--out={out}"]
            subprocess.run([sys.executable, "-m", *part, *rounds], check=True)
            found.append(Result.load(out / "goal7.json"))
    return joined(found, files=files, rows_of_a_file=rows)


def joined(parts: Sequence[Result], **about: int) -> Result:
    """One result of several."""
    return Result(
        7,
        "End to end",
        [case for part in parts for case in part.cases],
        [check for part in parts for check in part.checks],
        left_out=[line for part in parts for line in part.left_out],
        about={**about, **next((part.about for part in parts if part.about), {})},
    )
