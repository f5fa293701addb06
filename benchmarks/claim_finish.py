"""Claim and finish of batch tasks: everything we promise (token, history, ledger, barrier, ack) against two limits.

`limit`   delete … returning with skip locked: no lease, no result, nothing survives a crash of the worker.
`lease`   a plain lease-then-delete that writes the same rows (attempt, batch, counter), without tokens or checks.
`ours`    pipeline.claim and pipeline.finish.

Rounds are interleaved in random order on the same server (fsync and synchronous_commit on); the table shows medians,
spread and the ratio to each limit within a round. Run: python -m benchmarks.claim_finish [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.database import database

BEAT = 0.5  # seconds, as a Worker does

PEERS = {
    "make": """
        create schema peer;
        create table peer.counter (one bool primary key, settled int);
        insert into peer.counter values (true, 0);
        create table peer.batch (id bigint primary key, state text, result jsonb);
        create table peer.attempt (id bigint generated always as identity primary key, task bigint, worker text,
                                   claimed_at timestamptz, ended_at timestamptz default now(), outcome text);
        create table peer.task (id bigint generated always as identity primary key, ready_at timestamptz default now(),
                                leased_until timestamptz, worker text, payload jsonb);
        create index on peer.task (ready_at, id) where leased_until is null;
    """,
    "fill": """
        truncate peer.task, peer.batch;
        insert into peer.task (payload) select '{}' from generate_series(1, %(count)s);
        insert into peer.batch (id, state) select id, 'waiting' from peer.task;
    """,
    "limit": """
        delete from peer.task where id in (
          select id from peer.task order by ready_at, id limit %(n)s for update skip locked) returning id
    """,
    "lease": """
        update peer.task set leased_until = now() + interval '30 s', worker = %(worker)s where id in (
          select id from peer.task where leased_until is null order by ready_at, id limit %(n)s for update skip locked)
        returning id
    """,
    "ack": """
        with gone as (delete from peer.task where id = any (%(ids)s) returning id, worker),
        history as (insert into peer.attempt (task, worker, claimed_at, outcome)
                    select id, worker, now(), 'committed' from gone),
        batch as (update peer.batch b set state = 'committed', result = '{}' from gone where b.id = gone.id)
        update peer.counter set settled = settled + (select count(*) from gone)
    """,
}


def fill(conn: psycopg.Connection[Any], way: str, count: int, executions: int) -> None:
    if way != "ours":
        for statement in PEERS["fill"].split(";")[:-1]:
            conn.execute(statement.encode(), {"count": count} if "%(count)s" in statement else None)
        conn.execute("vacuum analyze peer.task, peer.batch")
        return
    per = count // executions
    for _ in range(executions):
        paths = [f"/in/{uuid4()}" for _ in range(per)]
        conn.execute("select pipeline.submit('bench', %s, %s, %s, %s)", (uuid4().hex, paths, ["1"] * per, [1] * per))
    conn.execute("vacuum analyze pipeline.task, pipeline.batch, pipeline.execution, pipeline.attempt")


def ours(dsn: str, n: int, done: Callable[[int, float], bool]) -> None:
    """Claims and finishes batches until `done`, which is told how many and how long the claim took."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        worker = uuid4()
        conn.execute("select pipeline.register_worker(%s, 'default', 'bench')", (worker,))
        beat = time.monotonic()
        while True:
            began = time.perf_counter()
            claim = "select task_id, token from pipeline.claim(%s, %s, %s)"
            rows = conn.execute(claim, (worker, uuid4(), n)).fetchall()
            claimed = time.perf_counter()
            ids, tokens = [row[0] for row in rows], [row[1] for row in rows]
            if claimed - beat > BEAT:
                conn.execute("select pipeline.beat(%s, %s, %s)", (worker, ids, tokens))
                beat = claimed
            if rows:
                results = ['{"rows_in": 1, "rows_out": 1}'] * len(rows)
                conn.execute("select 1 from pipeline.finish(%s, %s, %s::jsonb[])", (ids, tokens, results))
            if done(len(rows), claimed - began):
                return


def peer(dsn: str, way: str, n: int, done: Callable[[int, float], bool]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        worker = str(uuid4())
        while True:
            began = time.perf_counter()
            rows = conn.execute(PEERS[way].encode(), {"n": n, "worker": worker}).fetchall()
            claimed = time.perf_counter()
            if way == "lease" and rows:
                conn.execute(PEERS["ack"].encode(), {"ids": [row[0] for row in rows]})
            if done(len(rows), claimed - began):
                return


def rate(dsn: str, way: str, n: int, workers: int, count: int) -> float:
    with psycopg.connect(dsn, autocommit=True) as conn:
        fill(conn, way, count, executions=4)
    left = [count]
    lock = threading.Lock()

    def done(rows: int, _: float) -> bool:
        with lock:
            left[0] -= rows
            return left[0] <= 0 or rows == 0

    arguments = (ours, (dsn, n, done)) if way == "ours" else (peer, (dsn, way, n, done))
    threads = [threading.Thread(target=arguments[0], args=arguments[1]) for _ in range(workers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (count - max(left[0], 0)) / (time.perf_counter() - began)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--count", type=int, default=2000)
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    with database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(PEERS["make"].encode())
            conn.execute("select pipeline.register_pipeline('bench', '{\"batch_files\": 1}')")
        results = []
        for n, workers in [(1, 1), (1, 8), (10, 2), (100, 2), (100, 8)]:
            count = given.count if n == 1 else given.count * 5
            rounds: list[dict[str, float]] = []
            for _ in range(given.rounds):
                ways = ["limit", "lease", "ours"]
                random.shuffle(ways)
                rounds.append({way: rate(dsn, way, n, workers, count) for way in ways})
            medians = {way: statistics.median(r[way] for r in rounds) for way in ("limit", "lease", "ours")}
            ratio = {way: statistics.median(r["ours"] / r[way] for r in rounds) for way in ("limit", "lease")}
            results.append({"n": n, "workers": workers, "rounds": rounds, "medians": medians, "ratio": ratio})
            print(
                f"{n:>4} a trip, {workers} workers: "
                + "  ".join(f"{way} {medians[way]:>8,.0f}/s" for way in medians)
                + f"   ours is {ratio['limit']:.2f} of the limit, {ratio['lease']:.2f} of a plain lease"
            )
    if given.out:
        given.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
