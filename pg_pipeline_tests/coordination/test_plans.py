"""Query plans: what is asked often uses its index, at a million rows as at ten."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pg_pipeline.coordination.database import Database

pytestmark = pytest.mark.plants_violations  # rows written past the protocol: no closing audit


@pytest.fixture(params=[100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def full(request: pytest.FixtureRequest, db: Database, conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """So many waiting tasks of a hundred tenants, batches and files beside them, written straight to the tables."""
    conn.execute("select pipeline.submit('orders', 'k', array['/x'], array['1'], array[1::bigint])")
    conn.execute(
        "insert into pipeline.lane (queue, pipeline, kind, priority, tenant) "
        "select 'default', 'orders', 'batch', 0, 't' || n from generate_series(1, 100) n"
    )
    conn.execute(
        "insert into pipeline.execution (key, pipeline, request_key, fingerprint, state, policy, submission, expected) "
        "select 'x' || n, 'orders', 'r' || n, '', 'open', 'strict', '{}', 10 from generate_series(1, %s / 10) n",
        (request.param,),
    )
    conn.execute(
        "insert into pipeline.batch (execution_id, number, generation, state, files, bytes) "
        "select x.id, n, 1, 'waiting', 1, 1 from pipeline.execution x, generate_series(0, 9) n where x.key like 'x%'"
    )
    conn.execute(
        "insert into pipeline.file (key, execution_id, batch, ordinal, size, path, version) "
        "select pipeline.file_key('orders', b.execution_id || '/' || b.number, '1'), b.execution_id, b.number, 0, 1, "
        "b.execution_id || '/' || b.number, '1' from pipeline.batch b where b.execution_id > 1"
    )
    conn.execute(
        "insert into pipeline.task (lane_id, execution_id, generation, batch, max_attempts, ready_at) "
        "select l.id, b.execution_id, 1, b.number, 3, now() from pipeline.batch b "
        "join pipeline.lane l on l.tenant = 't' || (b.execution_id % 100 + 1) and l.kind = 'batch' "
        "where b.execution_id > 1"
    )
    conn.execute("analyze pipeline.task, pipeline.batch, pipeline.file, pipeline.execution, pipeline.lane")
    return conn


def walked(conn: psycopg.Connection[Any], statement: str, *parameters: Any) -> tuple[dict[str, int], list[Any]]:
    """How many rows of each large table a call read, whatever statements are inside it; a walk counts them all."""

    def read() -> dict[str, int]:
        return dict(
            conn.execute(
                "select relname, seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables "
                "where schemaname = 'pipeline' and relname in ('task', 'batch', 'file', 'execution', 'attempt')"
            ).fetchall()
        )

    with conn.transaction():
        before = read()
        answer = conn.execute(statement.encode(), parameters).fetchall()
        after = read()
    return {name: count - before.get(name, 0) for name, count in after.items()}, answer


def test_what_is_asked_often_reads_a_handful_of_rows_however_many_there_are(full: psycopg.Connection[Any]) -> None:
    worker = uuid4()
    full.execute("select pipeline.register_worker(%s, 'default', 'w', null, null, null, false)", (worker,))
    claimed, leases = walked(full, "select task_id, token from pipeline.claim(%s, %s, 10)", worker, uuid4())
    assert len(leases) == 10
    ids, tokens = [row[0] for row in leases], [row[1] for row in leases]
    assert claimed["task"] <= 400  # a probe or two for each of a hundred tenants, not a walk
    assert {name: read for name, read in claimed.items() if name != "task" and read > 200} == {}
    for call, parameters in {
        "select pipeline.beat(%s, %s, %s)": (worker, ids, tokens),
        "select * from pipeline.finish(%s, %s, array_fill('{}'::jsonb, array[10]))": (ids, tokens),
        "select * from pipeline.preview_files('orders', array['7/7'], array['1'])": (),
        "select * from pipeline.batch_files(7, 7)": (),
        "select pipeline.find_submission('orders', 'r7', '')": (),
    }.items():
        read, _ = walked(full, call, *parameters)
        assert max(read.values(), default=0) <= 200, (call, read)


def test_a_scrape_reads_the_attempts_of_its_window_alone(full: psycopg.Connection[Any]) -> None:
    full.execute(
        "insert into pipeline.attempt "
        "(token, task_id, queue, kind, number, worker, alone, claimed_at, ended_at, outcome) "
        "select gen_random_uuid(), n, 'default', 'batch', 1, gen_random_uuid(), false, now(), "
        "now() - make_interval(hours => n), 'committed' from generate_series(0, 100000) n"
    )
    full.execute("analyze pipeline.attempt")
    read, samples = walked(full, "select name, value from pipeline.metrics() where name = 'attempts_recent'")
    assert samples == [("attempts_recent", 1.0)]
    assert read["attempt"] <= 20


def test_dead_rows_that_an_old_transaction_holds_are_not_walked(db: Database) -> None:
    """Vacuum can't remove them; in a plain queue every claim walks all of them, and the queue decays."""
    done = 600
    with psycopg.connect(db.dsn, autocommit=True) as conn, psycopg.connect(db.dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 1 from pipeline.lane")  # its snapshot, as old as it will be
        worker = uuid4()
        conn.execute("select pipeline.register_worker(%s, 'default', 'w', null, null, null, false)", (worker,))
        entries = [{"key": str(number), "kind": "job"} for number in range(done)]
        for begin in range(0, done, 100):
            conn.execute("select from pipeline.send('default', %s)", (Jsonb(entries[begin : begin + 100]),))
            claim = "select task_id, token from pipeline.claim(%s, %s, 100)"
            leases = conn.execute(claim, (worker, uuid4())).fetchall()
            ids, tokens = [row[0] for row in leases], [row[1] for row in leases]
            conn.execute("select from pipeline.finish(%s, %s, array_fill('{}'::jsonb, array[100]))", (ids, tokens))
        last = [{"key": "last", "kind": "job"}, {"key": "next", "kind": "job"}]
        conn.execute("select from pipeline.send('default', %s)", (Jsonb(last),))
        ((task, token),) = conn.execute("select task_id, token from pipeline.claim(%s, %s)", (worker, uuid4()))
        conn.execute("select pipeline.beat(%s, %s, %s)", (worker, [task], [token]))
        again = "select task_id, token from pipeline.claim(%s, %s)"
        done_with = "select * from pipeline.finish(%s, %s, array['{}'::jsonb])"
        for _ in range(2):  # the statistics of an empty queue must not change how it is read
            visited = entries_visited(conn, again, worker, uuid4())
            assert visited < done / 10, visited
            visited = entries_visited(conn, "select pipeline.beat(%s, %s, %s)", worker, [task], [token])
            assert visited < done / 10, visited
            visited = entries_visited(conn, done_with, [task], [token])
            assert visited < done / 10, visited
            conn.execute("analyze pipeline.task, pipeline.worker, pipeline.lane, pipeline.attempt")


def entries_visited(conn: psycopg.Connection[Any], statement: str, *parameters: Any) -> int:
    """Index entries of the task table that a call looked at, dead ones too, and rows of tables that it scanned."""
    asked = (
        "select coalesce(sum(pg_stat_get_xact_tuples_returned(indexrelid)), 0) "
        "+ (select sum(seq_tup_read) from pg_stat_xact_user_tables where relname in ('task', 'attempt')) "
        "from pg_index where indrelid = 'pipeline.task'::regclass"
    )
    with conn.transaction():
        ((before,),) = conn.execute(asked).fetchall()
        conn.execute(statement.encode(), parameters)
        ((after,),) = conn.execute(asked).fetchall()
    return int(after - before)
