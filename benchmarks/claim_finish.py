"""Goal 1. Claim and finish of batch tasks: everything we promise (token, history, ledger, barrier, ack), against two
limits and the peers, at 1, 10 and 100 a round trip and 1, 2 and 8 workers.

`limit`   delete … returning with skip locked: no lease, no result, nothing survives a crash of the worker.
`lease`   a plain lease-then-delete that writes the same rows (attempt, batch, counter), without tokens or checks.
`ours`    pipeline.claim, then pipeline.finish: two trips and two commits, as the lease.
`one trip` pipeline.finish_and_claim: each trip finishes what the one before it was given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.database import server
from benchmarks.harness import Case, Check, Result, Run
from benchmarks.peers import LEFT_OUT, peers

BEAT = 0.5  # seconds, as a Worker does
Done = Callable[[int, float], bool]
OURS = ("ours", "one trip")

MAKE = """
create schema peer;
create table peer.counter (one bool primary key, settled int);
insert into peer.counter values (true, 0);
create table peer.batch (id bigint primary key, state text, result jsonb);
create table peer.attempt (id bigint generated always as identity primary key, task bigint, worker text,
                           claimed_at timestamptz, ended_at timestamptz default now(), outcome text);
create table peer.task (id bigint generated always as identity primary key, ready_at timestamptz default now(),
                        leased_until timestamptz, worker text, payload jsonb);
create index on peer.task (ready_at, id) where leased_until is null;
"""
FILL = """
insert into peer.task (payload) select '{}' from generate_series(1, %(count)s)
"""
STATEMENTS = {
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


def fill(dsn: str, way: str, count: int, executions: int = 4) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        if way not in OURS:
            conn.execute("truncate peer.task, peer.batch")
            conn.execute(FILL.encode(), {"count": count})
            conn.execute("insert into peer.batch (id, state) select id, 'waiting' from peer.task")
            conn.execute("vacuum analyze peer.task, peer.batch")
            return
        per = count // executions
        for _ in range(executions):
            submit(conn, per)
        conn.execute("vacuum analyze pipeline.task, pipeline.batch, pipeline.execution, pipeline.attempt")


def submit(conn: psycopg.Connection[Any], count: int) -> None:
    """An execution of `count` batches of a file."""
    paths = [f"/in/{uuid4()}" for _ in range(count)]
    conn.execute("select pipeline.submit('bench', %s, %s, %s, %s)", (uuid4().hex, paths, ["1"] * count, [1] * count))


def register(dsn: str, **settings: Any) -> None:
    """A pipeline whose batches have one file."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        wanted = psycopg.types.json.Jsonb({"batch_files": 1, **settings})
        conn.execute("select pipeline.register_pipeline('bench', %s)", (wanted,))


def ours(dsn: str, n: int, done: Done) -> None:
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
                (answer,) = conn.execute("select pipeline.beat(%s, %s, %s)", (worker, ids, tokens)).fetchone() or ({},)
                if answer["bloated"]:
                    conn.execute("select pipeline.compact()")
                beat = claimed
            if rows:
                results = ['{"rows_in": 1, "rows_out": 1}'] * len(rows)
                conn.execute("select 1 from pipeline.finish(%s, %s, %s::jsonb[])", (ids, tokens, results))
            if done(len(rows), claimed - began):
                conn.execute("select pipeline.stop_worker(%s)", (worker,))
                return


def chained(dsn: str, n: int, done: Done) -> None:
    """As `ours`, in one round trip: finishes what it holds and claims the next."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        worker = uuid4()
        conn.execute("select pipeline.register_worker(%s, 'default', 'bench')", (worker,))
        claim = "select task_id, token from pipeline.claim(%s, %s, %s)"
        rows = conn.execute(claim, (worker, uuid4(), n)).fetchall()
        beat = time.monotonic()
        while True:
            began = time.perf_counter()
            ids, tokens = [row[0] for row in rows], [row[1] for row in rows]
            if time.monotonic() - beat > BEAT:
                conn.execute("select pipeline.beat(%s, %b, %b::text[]::uuid[])", (worker, ids, tokens))
                beat = time.monotonic()
            results = ['{"rows_in": 1, "rows_out": 1}'] * len(rows)
            (answer,) = conn.execute(
                "select pipeline.finish_and_claim(%b, %b::text[]::uuid[], %b::text[]::jsonb[], %s, %s, %s)",
                (ids, tokens, results, worker, uuid4(), n),
            ).fetchone() or ({},)
            finished, rows = len(rows), [(lease["task_id"], lease["token"]) for lease in answer["leases"]]
            if done(finished, time.perf_counter() - began) or not rows:
                conn.execute("select pipeline.stop_worker(%s)", (worker,))
                return


def plain(dsn: str, way: str, n: int, done: Done) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        worker = str(uuid4())
        while True:
            began = time.perf_counter()
            rows = conn.execute(STATEMENTS[way].encode(), {"n": n, "worker": worker}).fetchall()
            claimed = time.perf_counter()
            if way == "lease" and rows:
                conn.execute(STATEMENTS["ack"].encode(), {"ids": [row[0] for row in rows]})
            if done(len(rows), claimed - began):
                return


def drained(dsn: str, way: str, n: int, workers: int, count: int) -> float:
    """Tasks a second of `count` that wait."""
    left, lock = [count], threading.Lock()

    def done(rows: int, _: float) -> bool:
        with lock:
            left[0] -= rows
            return left[0] <= 0 or rows == 0

    ways = {"ours": lambda: ours(dsn, n, done), "one trip": lambda: chained(dsn, n, done)}
    work = ways.get(way, lambda: plain(dsn, way, n, done))
    threads = [threading.Thread(target=work) for _ in range(workers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (count - max(left[0], 0)) / (time.perf_counter() - began)


def measure(run: Run) -> Result:
    cells = run.of([(10, 2)], [(1, 2), (100, 2)], [(n, w) for n in (1, 10, 100) for w in (1, 2, 8)])
    with server(run.embedded) as made, ExitStack() as stack:
        own, other = made.migrated(), made.new()
        register(own)
        with psycopg.connect(other, autocommit=True) as conn:
            conn.execute(MAKE.encode())
        rivals = peers(made, stack) if run.peers else {}
        cases: list[Case] = []
        spent: list[Case] = []  # of a busy machine it says more than the time
        for n, workers in cells:
            count = run.of(40, 200, 1000) if n == 1 else run.of(40, 2000, 10_000)

            cpu: dict[str, list[float]] = {}

            def raw(way: str, n: int = n, workers: int = workers, count: int = count, cpu: Any = cpu) -> float:
                dsn = own if way in OURS else other
                fill(dsn, way, count)
                before = made.cpu()
                rate = drained(dsn, way, n, workers, count)
                cpu.setdefault(way, []).append((made.cpu() - before) / count * 1e6)
                return rate

            def theirs(name: str, n: int = n, workers: int = workers, count: int = count) -> float:
                # Enough that most are acknowledged within the time measured, which ends with the last handler.
                few = max(20, int(count * rivals[name].share), run.of(1, 5, 5) * n * workers)
                rivals[name].enqueue(few)
                return rivals[name].drain(n, workers, few)

            ways: dict[str, Callable[[], float]] = {
                way: (lambda way=way: raw(way)) for way in (*OURS, "lease", "limit")
            }  # type: ignore[misc]
            ways |= {name: (lambda name=name: theirs(name)) for name in rivals}  # type: ignore[misc]
            print(f"{n} a trip, {workers} workers:", flush=True)
            cases.append(Case(f"{n} a trip, {workers} workers", "tasks/s", run.interleaved(ways)))
            rounds = [{way: max(took[i], 0.01) for way, took in cpu.items()} for i in range(len(cpu["ours"]))]
            spent.append(Case(f"CPU of Postgres, {cases[-1].name}", "µs/task", rounds))
        about = {"postgres": made.settings()}
    return Result(1, "Claim and finish", cases + spent, judged(cases, list(rivals)), left_out=LEFT_OUT, about=about)


def judged(cases: list[Case], rivals: list[str]) -> list[Check]:
    checks = []
    for case in cases:
        checks.append(Check(f"of a plain lease, {case.name}", case.ratio("ours", "lease"), 0.5, "at least", "×"))
        best = case.best(rivals)
        if best:
            checks.append(
                Check(f"of the best peer ({best}), {case.name}", case.ratio("ours", best), 1, "at least", "×")
            )
        if case.name.startswith("100") and "pgmq" in case.ways:
            ratio = case.ratio("ours", "pgmq")
            checks.append(Check(f"of PGMQ, {case.name}", ratio, 3, "at least", "×", moonshot=True))
    return checks
