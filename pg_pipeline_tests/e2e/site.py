"""A user's project with files to process, its worker runs, and what is visible of the rows."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.sinks.parquet import ParquetDataset
from pg_pipeline_tests.helpers import PROJECT, ChildProcess

SINKS = ("postgres", "parquet")
Row = tuple[int, Decimal, str]


@dataclass
class Site:
    """`config` is of the Spark session of its runs."""

    folder: Path
    db: Database
    child: Callable[..., ChildProcess]
    config: dict[str, Any]
    expected: dict[str, Counter[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.code = self.folder / "project"
        self.code.mkdir()
        for name in ("cluster_project.py", "cluster_steps.py"):
            shutil.copy(Path(__file__).with_name(name), self.code)

    def submit(self, pipeline: str, files: int = 8, rows: int = 2400) -> str:
        """Files whose rows plain Python knows; some amounts are below zero, which the transform leaves out."""
        chance, wanted = random.Random(pipeline), Counter[Row]()
        place = self.folder / "in" / pipeline
        place.mkdir(parents=True)
        for number in range(files):
            orders = [
                {"order_id": number * rows + n, "amount": chance.randrange(-200, 1000) / 4, "note": "x" * 1000}
                for n in range(rows)
            ]
            (place / f"{number}.json").write_text("".join(json.dumps(order) + "\n" for order in orders))
        for path in place.iterdir():
            for line in path.read_text().splitlines():
                order = json.loads(line, parse_float=Decimal)
                if order["amount"] > 0:
                    wanted[order["order_id"], order["amount"].quantize(Decimal("0.01")), order["note"]] += 1
        self.expected[pipeline] = wanted
        submission.register_pipeline(self.db, pipeline, batch_files=4)
        found = [FileVersion(str(p), str(p.stat().st_mtime_ns), p.stat().st_size) for p in sorted(place.iterdir())]
        return submission.submit(self.db, pipeline, found, request_key=pipeline).execution

    def run(
        self,
        variables: dict[str, str] | None = None,
        *,
        slots: int = 2,
        under: Sequence[str] = (),
        **config: Any,
    ) -> ChildProcess:
        """A worker run, as Dagster's launcher starts it, `under` another command."""
        environment = {
            "PYTHONPATH": f"{self.code}:{PROJECT}",
            "PG_PIPELINE_DSN": self.db.dsn,
            "TEST_CLUSTER": str(self.folder),
            "TEST_SPARK_CONFIG": json.dumps({**self.config, **config}),
            "PYTHONWARNINGS": "ignore",
            "DAGSTER_HOME": None,
            **(variables or {}),
        }
        given = self.folder / "run.yaml"
        given.write_text(json.dumps({"ops": {"cluster_drain": {"config": {"slots": slots}}}}))
        job = ("job", "execute", "-m", "cluster_project", "-j", "cluster_worker", "-c", str(given))
        return self.child(command=(*under, sys.executable, "-m", "dagster", *job), env=environment, cwd=self.folder)

    def wrong(self, pipeline: str) -> dict[str, list[int]]:
        """What is visible against what plain Python makes of the files, by order."""
        visible, expected = self.visible(pipeline), self.expected[pipeline]
        assert expected, "nothing to compare"
        both = {"missing": expected - visible, "too much": visible - expected}
        return {name: sorted(row[0] for row in rows.elements())[:20] for name, rows in both.items() if rows}

    def visible(self, pipeline: str) -> Counter[Row]:
        with psycopg.connect(self.db.dsn) as conn:
            if pipeline == "postgres":
                return Counter(conn.execute("select order_id, amount, note from analytics.cluster").fetchall())
            tables = [pq.ParquetFile(path).read() for path in ParquetDataset(str(self.folder / "lake")).files(conn)]
        return Counter((r["order_id"], r["amount"], r["note"]) for table in tables for r in table.to_pylist())

    def writers(self, pipeline: str) -> set[str]:
        """Who writes or wrote: sessions whose COPY has got rows, files that were begun."""
        if pipeline == "postgres":
            found = self.db.rows("select pid::text from pg_stat_progress_copy where bytes_processed > 0")
            return {row["pid"] for row in found}
        parts = (self.folder / "lake").rglob("*.parquet")
        return {str(path) for path in parts}

    def hold(self) -> Path:
        path = self.folder / "hold"
        path.touch()
        return path
