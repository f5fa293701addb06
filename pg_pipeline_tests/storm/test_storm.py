"""A short storm, and the proof that its judge is not blind."""

import random
from pathlib import Path
from typing import Any

import psycopg

from pg_pipeline_tests.storm import roles
from pg_pipeline_tests.storm.storm import Report, Storm
from pg_pipeline_tests.storm.world import World, rows_of

SEED = 20260
SECONDS = 30


def test_p1_p2_p5_nothing_is_lost_doubled_or_billed_twice_in_a_storm(session_dir: Path) -> None:
    """Without Spark, whose start alone would take half of the time; `make storm` has it."""
    folder = session_dir / "storm"
    folder.mkdir()
    report = Storm(folder, SEED, spark=False).run(SECONDS)
    assert report.wrong == [], str(report)
    assert report.rows > 100
    assert sum(report.strikes.values()) > 5, str(report)
    assert any(what.startswith("killed") for what in report.strikes), str(report)


HARM = """
delete from public.plain where order_id = (select min(order_id) from public.plain);
insert into public.plain select * from public.plain where order_id = (select max(order_id) from public.plain)
"""


def test_the_judge_sees_one_row_that_is_missing_and_one_that_is_there_twice(session_dir: Path) -> None:
    """A calm sea, and two rows changed by hand between the work and the judgement."""

    class Harmed(Storm):
        def _judge(self, dsn: str, *others: Any) -> Report:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(HARM)
            return super()._judge(dsn, *others)

        def _rage(self, crew: Any, *_: Any) -> None:
            for _ in range(3):
                self._land()
            crew.tend()

    folder = session_dir / "calm"
    folder.mkdir()
    report = Harmed(folder, 1, workers=1, spark=False).run(0)
    assert len(report.wrong) == 2, report.wrong
    assert "1 rows lost" in report.wrong[0]
    assert "1 rows doubled" in report.wrong[1]


def test_what_must_come_out_is_computed_without_the_product(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1))
    delivery = world.land(roles.PLAIN, files=2, rows=3)
    Path(delivery.paths[0]).write_text('{"order_id": 1, "amount": 2.5}\n{"order_id": 2, "amount": -1.0}\n')
    Path(delivery.paths[1]).write_text('{"order_id": 3, "amount": 2.5}\n{"order_id": 4, "am')
    assert [(number, float(amount)) for number, amount in rows_of(delivery)] == [(1, 2.5)]
