"""A short load, and the proof that its judge is not blind; docs/reliability.md has the long ones."""

from pathlib import Path

import psycopg

from pg_pipeline.coordination.database import Database
from pg_pipeline_tests.storm.load import Load, _judge, run


def test_p1_p2_a_steady_load_with_workers_killed_has_each_effect_once(session_dir: Path) -> None:
    folder = session_dir / "load"
    folder.mkdir()
    load = run(folder, Load(seed=3, seconds=8, rate=100, workers=2))
    assert load.wrong == [], str(load)
    assert load.sent > 500
    assert load.kills + load.sessions_ended > 0, str(load)


def test_the_judge_of_a_load_sees_an_effect_that_is_missing_and_one_that_is_there_twice(dsn: str) -> None:
    load = Load(seed=1, seconds=1, rate=1, workers=1)
    with psycopg.connect(dsn) as conn:
        conn.execute("create table public.effect (key text, at float8, done timestamptz default clock_timestamp())")
        conn.execute("insert into public.effect values ('a', 0), ('b', 0), ('b', 0)")
    with Database(dsn) as db:
        _judge(db, load, ["a", "b", "c"])
    assert [wrong[:14] for wrong in load.wrong] == ["1 effects lost", "1 effects doub"]
