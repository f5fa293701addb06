"""What a large ledger costs those who use it: submit, claim and prune against none known and against very many.

python -m benchmarks.ledger [--files 10000000] [--rounds 5]; `make simulate` draws docs/scaling.md from what it keeps.
Executions of ten thousand files, batches of a hundred, all finished a day after the files' own age.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.database import server
from benchmarks.harness import Run, keep, surroundings
from pg_pipeline.coordination import executions, submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion

EACH = 10_000  # files of an execution
SOME = 10_000  # files that are submitted

EXECUTIONS = """
insert into pipeline.execution (key, pipeline, request_key, fingerprint, state, policy, expected, settled, submission,
                                created_at, sealed_at, ended_at)
select 'known-' || n, 'bench', 'known-' || n, '', 'finished', 'strict', %(each)s / 100, %(each)s / 100, '{}', t, t, t
from generate_series(1, %(count)s) n cross join lateral (select now() - (%(count)s - n + 2) * '1 hour'::interval as t) o
"""
BATCHES = """
insert into pipeline.batch (execution_id, number, generation, state, files, bytes, token, committed_at)
select x.id, n, 1, 'committed', 100, 100000, gen_random_uuid(), x.ended_at
from pipeline.execution x cross join generate_series(0, %(each)s / 100 - 1) n where x.key like 'known-%%'
"""
FILES = """
insert into pipeline.file (key, execution_id, batch, ordinal, size, modified_at, path, version)
select pipeline.file_key('bench', path, '1'), x.id, n / 100, n %% 100, 1000, x.ended_at - '1 day'::interval, path, '1'
from pipeline.execution x cross join generate_series(0, %(each)s - 1) n
cross join lateral (select '/landing/orders/' || x.key || '/' || n || '.json' as path) p
where x.key like 'known-%%' and x.id > %(after)s and x.id <= %(after)s + %(step)s
"""


def fill(dsn: str, files: int) -> None:
    """So many known files; the indexes afterwards, which takes a third of the time."""
    given = {"count": files // EACH, "each": EACH, "step": 50}
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(EXECUTIONS.encode(), given)
        conn.execute(BATCHES.encode(), given)
        indexes = conn.execute(
            "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index "
            "where indrelid = 'pipeline.file'::regclass and not indisprimary"
        ).fetchall()
        for name, _ in indexes:
            conn.execute(f"drop index {name}".encode())
        conn.execute("alter table pipeline.file drop constraint file_pkey")
        for after in range(0, files // EACH, given["step"]):
            conn.execute(FILES.encode(), given | {"after": after})
        conn.execute("set maintenance_work_mem = '512MB'")
        conn.execute("alter table pipeline.file add constraint file_pkey primary key (key)")
        for _, definition in indexes:
            conn.execute(definition.encode())
        conn.execute("vacuum analyze")


def new_files(count: int) -> list[FileVersion]:
    folder = uuid4().hex
    return [FileVersion(f"/landing/orders/{folder}/{n}.json", "1", 1000, datetime.now(UTC)) for n in range(count)]


def submit(db: Database, count: int) -> float:
    """Seconds."""
    files, key = new_files(count), uuid4().hex
    began = time.perf_counter()
    assert submission.submit(db, "bench", files, request_key=key, request=key).taken == count
    return time.perf_counter() - began


def claim(db: Database, claims: int = 20) -> float:
    """Milliseconds of a claim of ten, which are handed back."""
    worker, took = uuid4(), []
    db.rows("select pipeline.register_worker(%s, 'default', 'bench')", (worker,))
    for _ in range(claims):
        began = time.perf_counter()
        rows = db.rows("select task_id, token from pipeline.claim(%s, %s, 10)", (worker, uuid4()))
        took.append((time.perf_counter() - began) * 1000)
        for row in rows:
            db.rows("select pipeline.release(%s, %s)", (row["task_id"], row["token"]))
    db.rows("select pipeline.stop_worker(%s)", (worker,))
    return statistics.median(took)


def prune(db: Database, other: Database, steps: int) -> dict[str, Any]:
    """A horizon that forgets half, in steps, while another submits a hundred files again and again."""
    row = db.rows("select ended_at from pipeline.execution where key like 'known-%%' order by id offset "
                  "(select count(*) / 2 from pipeline.execution where key like 'known-%%') limit 1")[0]  # fmt: skip
    submit(other, 100)
    alone = [submit(other, 100) for _ in range(20)]
    beside: list[float] = []
    done = threading.Event()

    def submits() -> None:
        while not done.is_set():
            beside.append(submit(other, 100))

    thread = threading.Thread(target=submits)
    thread.start()
    took, went = [], []
    before = db.value("select count(*) from pipeline.execution where key like 'known-%%'")
    for _ in range(steps):
        began = time.perf_counter()
        count = executions.prune_ledger(db, "bench", row["ended_at"] - timedelta(hours=1))
        took.append(time.perf_counter() - began)
        went.append(count)
        if not count:
            break
    done.set()
    thread.join()
    after = db.value("select count(*) from pipeline.execution where key like 'known-%%'")
    assert before - after == sum(went) > 0
    return {
        "files_a_step": max(went) * EACH,
        "step_seconds": spread(took[:-1] or took),
        "submit_of_100_alone_ms": spread([1000 * one for one in alone]),
        "submit_of_100_beside_ms": spread([1000 * one for one in beside]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {name: round(made(values), 4) for name, made in (("median", statistics.median), ("most", max))}


def measure(run: Run, files: int) -> dict[str, Any]:
    with server(run.embedded) as made:
        dbs: dict[str, Database] = {}
        for name, count in (("none known", 0), (f"{files:,} known", files)):
            dsn = made.migrated()
            dbs[name] = Database(dsn)
            submission.register_pipeline(dbs[name], "bench")
            if count:
                fill(dsn, count)
            submit(dbs[name], 1000)
        full = dbs[f"{files:,} known"]
        sizes = full.rows(
            "select pg_relation_size('pipeline.file') as heap, pg_indexes_size('pipeline.file') as indexes, "
            "pg_total_relation_size('pipeline.batch') + pg_total_relation_size('pipeline.execution') as others, "
            "(select count(*) from pipeline.file) as files"
        )[0]
        submits = run.interleaved({name: (lambda db=db: submit(db, SOME)) for name, db in dbs.items()})
        claims = run.interleaved({name: (lambda db=db: claim(db)) for name, db in dbs.items()})
        with Database(full.dsn) as other:
            pruned = prune(full, other, run.of(3, 5, 20))
        settings = made.settings()
        for db in dbs.values():
            db.close()
    million = 1e6 / sizes["files"]
    return {
        "known": files,
        "submit": submits,
        "claim": claims,
        "prune": pruned,
        "disk_mb_per_million": {
            what: round(sizes[what] * million / 2**20, 1) for what in ("heap", "indexes", "others")
        },
        "about": {"postgres": settings},
    }


def main() -> None:
    asked = argparse.ArgumentParser(prog="benchmarks.ledger", description=__doc__)
    asked.add_argument("--files", type=int, default=10_000_000)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--seed", type=int, default=7)
    given = asked.parse_args()
    about = surroundings()
    run = Run("full", given.rounds, False, given.seed)
    found = measure(run, given.files)
    found["about"] = {**about, "rounds": given.rounds, **found["about"]}
    print(found)
    print(keep("ledger", found))


if __name__ == "__main__":
    main()
