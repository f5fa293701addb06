"""Nothing that a producer sends makes the server do work without bound."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.errors import InvalidInput


def test_a_send_of_too_many_entries_is_refused_whole(db: Database, conn: psycopg.Connection[Any]) -> None:
    entries = [{"key": str(n), "kind": "k"} for n in range(10_001)]
    with pytest.raises(InvalidInput, match="10001 entries in one send, of at most 10000"):
        submission.send(db, "default", entries)
    assert conn.execute("select count(*) from pipeline.task").fetchone() == (0,)
    assert len(submission.send(db, "default", entries[:10_000])) == 10_000


def test_a_call_with_too_many_files_is_refused_whole(db: Database, conn: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.Error, match="100001 files in one call, of at most 100000"):
        conn.execute(
            "select pipeline.submit('orders', 'k', array_agg('/' || n), array_agg('1'::text), array_agg(1::bigint)) "
            "from generate_series(1, 100001) n"
        )
    assert conn.execute("select count(*) from pipeline.execution").fetchone() == (0,)


@pytest.mark.parametrize("payload", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_json_that_is_too_deep_is_refused_and_the_session_lives(
    db: Database, conn: psycopg.Connection[Any], payload: str
) -> None:
    entry = '[{"key": "k", "kind": "k", "payload": ' + payload + "}]"
    with pytest.raises(psycopg.Error, match="stack depth limit"):
        conn.execute("select * from pipeline.send('default', %s::text::jsonb)", (entry,))
    assert conn.execute("select count(*) from pipeline.task").fetchone() == (0,)


def test_texts_are_bounded_where_they_are_kept(db: Database, conn: psycopg.Connection[Any]) -> None:
    for bad in (
        {"key": "k" * 501, "kind": "k"},
        {"key": "k", "kind": "k" * 101},
        {"key": "k", "kind": "k", "tenant": "t" * 201},
        {"key": "k", "kind": "k", "payload": "p" * 65_536},
        {"key": "k", "kind": "k", "delay_seconds": 1e300},
    ):
        (sent,) = submission.send(db, "default", [bad])
        assert sent.outcome == "rejected", bad
    for path, version, key in (("/" + "p" * 4096, "1", "k"), ("/p", "v" * 501, "k"), ("/p", "1", "k" * 501)):
        with pytest.raises(InvalidInput):
            submission.submit(db, "orders", [FileVersion(path, version, 1)], request_key=key)
    with pytest.raises(psycopg.Error):
        conn.execute("select pipeline.register_pipeline('p', %s)", (Jsonb({"batch_files": 100_001}),))


def test_an_error_without_end_is_cut(db: Database, conn: psycopg.Connection[Any], worker: Any, submit: Any) -> None:
    submit(1)
    one = worker()
    (lease,) = one.claim()
    one.fail(lease, "x" * 5_000_000, retryable=False)
    (kept,) = conn.execute("select length(error) from pipeline.dead_letter").fetchone() or (0,)
    assert kept <= 20_000
