"""A storm: many workers over many small executions while processes, sessions and Postgres itself are killed at random.

python -m pg_pipeline_tests.storm.storm [--seconds 180] [--seed 7] [--workers 4] [--no-spark] [--dagster] [--record]

Then it is calm, everything comes to rest, and every promise is checked from the outside: the rows of the input files,
computed in plain Python, against the rows of the sink; the bills that a receiver got against the same computation.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import DatabaseUnreachable
from pg_pipeline.pipelines import FilePipeline
from pg_pipeline.settings import get_settings
from pg_pipeline.sinks.postgres import PostgresTable
from pg_pipeline_tests.crash.conftest import Receiver
from pg_pipeline_tests.helpers import wait_until
from pg_pipeline_tests.storm.chaos import Chaos, Crew
from pg_pipeline_tests.storm.landed import LANDED, Dagster
from pg_pipeline_tests.storm.roles import PLAIN, SINK, SPARK, spark_pipeline
from pg_pipeline_tests.storm.world import Row, World, rows_of

CALM = 600.0
RESULTS = Path(__file__).with_name("results.jsonl")


@dataclass
class Report:
    """What happened, and what is wrong with what came out of it."""

    seed: int
    strikes: Counter[str]
    deliveries: int = 0
    rows: int = 0
    bills: int = 0
    generations: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        struck = ", ".join(f"{what} {n}×" for what, n in sorted(self.strikes.items()))
        lines = [
            f"seed {self.seed}: {sum(self.strikes.values())} strikes ({struck})",
            f"{self.deliveries} deliveries, {self.generations} generations, {self.rows} rows, {self.bills} bills; "
            f"attempts: {', '.join(f'{n} {what}' for what, n in sorted(self.attempts.items()))}",
            *(self.wrong or ["nothing lost, nothing doubled, every callback acted once, audit clean"]),
        ]
        return "\n".join(lines)


class Storm:
    """`folder` is its own; the server that it kills too."""

    def __init__(self, folder: Path, seed: int, *, workers: int = 4, spark: bool = True, dagster: bool = False) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        self._folder, self._spark = folder, spark
        self._server = EmbeddedServer(folder / f"postgres{get_settings().postgres_version}", linger=0)  # also `up`'s
        self._receiver = Receiver()
        self._world = World(folder / "landing", random.Random(self._chance.getrandbits(32)))
        self._landed = folder / "deliveries"
        self._dagster = Dagster(folder, folder / "landing" / LANDED) if dagster else None
        self._roles = ["worker"] * workers + ["submitter"] + ["janitor"] * 2 + ["spark"] * spark

    def run(self, seconds: float, say: Callable[[str], None] = lambda _text: None) -> Report:
        self._server.attach()
        dsn = self._server.dsn()
        try:
            self._prepare(dsn)
            given = {"deliveries": str(self._landed), "dsn": dsn, "meddle": True, "server": str(self._server.folder)}
            crew = Crew(dsn, self._folder, random.Random(self._chance.getrandbits(32)), given, self._roles)
            chaos = Chaos(self._server, crew, self._chance, self._dagster)
            try:
                self._rage(crew, chaos, seconds, say)
                say("calm")
                self._come_to_rest(crew, dsn)
            finally:
                crew.close()
                if self._dagster is not None:
                    self._dagster.close()
            return self._judge(dsn, chaos, crew)
        finally:
            self._receiver.close()
            self._server.detach()
            wait_until(lambda: not self._server.held("keeper.lock"), what="the keeper to stop the server and go")

    def _prepare(self, dsn: str) -> None:
        migrate(dsn)
        self._landed.touch()
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SINK.encode())
            conn.execute("insert into public.receiver values (%s)", (self._receiver.url,))
        quick = {"backoff_base": "50 ms", "backoff_cap": "200 ms", "breaker_after": 0, "max_attempts": 4}
        with Database(dsn) as db:
            submission.configure_queue(db, "default", lease="2 s", grace="300 ms", **quick)
            submission.register_pipeline(db, PLAIN, batch_files=3)
            if self._spark:
                submission.configure_queue(db, SPARK, lease="10 s", grace="1 s", **quick)
                pipeline = spark_pipeline(FilePipeline, PostgresTable)
                submission.register_pipeline(db, SPARK, **pipeline.registration)
            if self._dagster is not None:
                submission.configure_queue(db, LANDED, lease="10 s", grace="1 s", **quick)

    def _rage(self, crew: Crew, chaos: Chaos, seconds: float, say: Callable[[str], None]) -> None:
        until, told = time.monotonic() + seconds, time.monotonic()
        while (now := time.monotonic()) < until:
            self._land()
            self._tend(crew)
            chaos.strike()
            if now - told > 10:
                say(f"{until - now:.0f} s left, {sum(chaos.counts.values())} strikes")
                told = now
            time.sleep(self._chance.uniform(0.05, 0.4))

    def _tend(self, crew: Crew) -> None:
        crew.tend()
        if self._dagster is not None:
            self._dagster.tend()

    def _land(self) -> None:
        """A new delivery, of which the submitter learns from a file, and Dagster from its landing folder."""
        turn = len(self._world.deliveries) % 60
        pipeline = SPARK if self._spark and turn == 0 else LANDED if self._dagster is not None and turn == 30 else PLAIN
        files, rows = self._chance.randint(1, 12), self._chance.randint(1, 20)
        one = self._world.land(pipeline, files=files, rows=rows)
        if pipeline == LANDED:
            return
        with self._landed.open("a") as listing:
            listing.write(json.dumps({"key": one.key, "pipeline": pipeline, "paths": one.paths}) + "\n")

    def _come_to_rest(self, crew: Crew, dsn: str) -> None:
        """The crew goes on without being killed, until all is done; what was cancelled is taken again first."""
        crew.calm()

        def resting() -> bool:
            self._tend(crew)
            try:
                with Database(dsn) as db:
                    return self._all_done(db)
            except (psycopg.OperationalError, DatabaseUnreachable):
                return False

        try:
            wait_until(resting, timeout=CALM, what="everything to be done after the storm")
        except AssertionError as error:
            crew.defects.append(f"{error}; {_what_waits(dsn)}")

    def _all_done(self, db: Database) -> bool:
        asked = {row["request_key"] for row in db.rows("select request_key from pipeline.execution")}
        asked |= {f"delivery {int(key.split(':')[1])}" for key in asked if key.startswith("landing:")}
        if any(one.key not in asked for one in self._world.deliveries):
            return False
        by_key = {one.key: one for one in self._world.deliveries}
        for row in db.rows("select request_key from pipeline.execution where state = 'cancelled'"):
            one = by_key[row["request_key"].removeprefix("again ")]
            files = [FileVersion(path, "1", Path(path).stat().st_size) for path in one.paths]
            submission.submit(db, one.pipeline, files, request_key=f"again {one.key}", released=True)
        # A dispatcher that died holds its rows for half a minute: no need to sit it out.
        db.rows("update pipeline.outbox set leased_until = now(), next_at = now() where state = 'pending' returning 1")
        waiting = """select (select count(*) from pipeline.task) + (select count(*) from pipeline.execution
                       where state in ('open', 'sealed'))
                     + (select count(*) from pipeline.outbox where state = 'pending' and destination <> '')"""
        return bool(db.value(waiting) == 0)

    def _judge(self, dsn: str, chaos: Chaos, crew: Crew) -> Report:
        report = Report(self.seed, chaos.counts, len(self._world.deliveries), wrong=list(crew.defects))
        with Database(dsn) as db:
            for pipeline, table in ((PLAIN, "plain"), (SPARK, "spark_orders"), (LANDED, "landed_orders")):
                expected = self._world.expected(pipeline)
                if not expected:
                    continue
                there = db.value("select to_regclass(%s) is not null", (f"public.{table}",))
                rows = db.rows(f"select order_id, amount from public.{table}") if there else []
                shown: Counter[Row] = Counter((row["order_id"], row["amount"]) for row in rows)
                report.rows += len(rows)
                for what, difference in (("lost", expected - shown), ("doubled or made up", shown - expected)):
                    if difference:
                        report.wrong.append(
                            f"{pipeline}: {difference.total()} rows {what}, such as {difference.most_common(3)}"
                        )
            report.wrong += [f"audit: {violation}" for violation in executions.audit(db)]
            states = {row["request_key"]: row for row in db.rows("select * from pipeline.execution")}
            report.generations = sum(row["generation"] for row in states.values())
            outcomes = db.rows("select outcome, count(*) as n from pipeline.attempt group by 1")
            report.attempts = {row["outcome"]: row["n"] for row in outcomes}
        self._judge_bills(report, states)
        return report

    def _judge_bills(self, report: Report, states: dict[str, dict[str, Any]]) -> None:
        """One bill per generation once the receiver has thrown away repetitions, and each says what the files say."""
        bills = {key: json.loads(body) for key, body in self._receiver.bodies.items()}
        report.bills = len(bills)
        for one in self._world.deliveries:
            if one.pipeline != PLAIN or states[one.key]["state"] == "cancelled":
                continue
            row = states[one.key]
            wanted = {f"{row['key']}:g{number}:callback:1" for number in range(1, row["generation"] + 1)}
            got = {key for key in bills if key.startswith(f"{row['key']}:")}
            rows = rows_of(one)
            right = {"rows": rows.total(), "total": sum(amount * n for (_, amount), n in rows.items())}
            # A generation that was cancelled, with the next one run after it, sent none.
            if not (got <= wanted and f"{row['key']}:g{row['generation']}:callback:1" in got):
                report.wrong.append(f"{one.key}: bills {sorted(got)}, of {sorted(wanted)}")
            for key in got:
                if (bills[key]["rows"], float(bills[key]["total"])) != (right["rows"], float(right["total"])):
                    report.wrong.append(f"{key} says {bills[key]}, the files say {right}")


def _what_waits(dsn: str) -> str:
    with Database(dsn) as db:
        live = db.rows("select key, pipeline from pipeline.execution where state in ('open', 'sealed') order by id")
        why = [f"{row['key']} ({row['pipeline']}): {executions.explain(db, row['key'])}" for row in live[:3]]
        return f"{len(live)} executions wait: " + "; ".join(why)


def main() -> int:
    parser = argparse.ArgumentParser(description="A storm: kill everything at random, then look what came out.")
    parser.add_argument("--seconds", type=float, default=180, help="how long it rages; 3600 is an hour")
    parser.add_argument("--seed", type=int, default=None, help="which storm; a new one by default, printed")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-spark", action="store_true", help="without a Spark worker among them")
    parser.add_argument("--dagster", action="store_true", help="with a `pg-pipeline up` among them; needs more minutes")
    parser.add_argument("--record", action="store_true", help="keep the result for docs/reliability.md")
    asked = parser.parse_args()
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    print(f"SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pgp-") as folder:
        members = {"spark": not asked.no_spark, "dagster": asked.dagster}
        storm = Storm(Path(folder), seed, workers=asked.workers, **members)
        report = storm.run(asked.seconds, lambda text: print(text, flush=True))
    print(report)
    if asked.record:
        with RESULTS.open("a") as results:
            results.write(json.dumps(vars(report) | {"seconds": asked.seconds, **members}) + "\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
