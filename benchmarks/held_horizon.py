"""Goal 4. A steady load while somebody holds an old transaction open: does the rate hold, do the tables stay bounded?

A hundred tasks arrive five times a second; two workers take them 25 at a time. After a quiet start a transaction with
a snapshot is opened and left. Ours, a plain lease (claim_finish.py) and PGMQ, one after the other.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.claim_finish import FILL, MAKE, Done, ours, plain, register, submit
from benchmarks.database import server
from benchmarks.harness import Case, Check, Result, Run
from benchmarks.peers import LEFT_OUT, peer

RATE = 500
BOUND = 24  # megabytes with indexes, of a table that is compacted at 4 MB without
TEETH = 60  # seconds: the size goes up and down, and the largest of a third should have seen a turn
# Every table whose name begins so: what waits may be in several of them.
SIZE = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0)::float8 / 1e6
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname = %s and starts_with(c.relname, %s)
"""


@dataclass
class Way:
    """How tasks are sent, how one worker takes them, and which tables hold those that wait."""

    dsn: str
    send: Callable[[psycopg.Connection[Any], int], object]
    work: Callable[[Done], None]
    tables: tuple[str, str]  # schema, and how their names begin


@dataclass
class Held:
    rate_before: float
    rate_held: float
    claim_before: float
    claim_held: float
    growth: float
    largest: float
    rates: list[tuple[float, float]]
    sizes: list[tuple[float, float]]


def observe(way: Way, before: int, held: int, every: float) -> Held:
    stop, lock = threading.Event(), threading.Lock()
    done, waits = [0], [[0.0]]

    def counted(rows: int, seconds: float) -> bool:
        with lock:
            done[0] += rows
            waits[0].append(seconds)
        if not rows:
            stop.wait(0.02)
        return stop.is_set()

    def produce() -> None:
        with psycopg.connect(way.dsn, autocommit=True) as conn:
            due = time.monotonic()
            while not stop.is_set():
                way.send(conn, 100)
                due += 100 / RATE
                stop.wait(max(0.0, due - time.monotonic()))

    threads = [threading.Thread(target=produce)] + [
        threading.Thread(target=way.work, args=(counted,)) for _ in range(2)
    ]
    rates: list[tuple[float, float]] = []
    sizes: list[tuple[float, float]] = []
    claims: list[float] = []
    with psycopg.connect(way.dsn, autocommit=True) as conn, psycopg.connect(way.dsn) as holder:
        for thread in threads:
            thread.start()
        began = last = time.monotonic()
        holding = False
        while (now := time.monotonic()) < began + before + held:
            if not holding and now >= began + before:
                holder.execute("set transaction isolation level repeatable read")
                holder.execute("select count(*) from pg_class")
                holding = True
            stop.wait(every)
            with lock:
                since = time.monotonic() - last
                rates.append((round(time.monotonic() - began - before, 1), done[0] / since))
                claims.append(statistics.median(waits[0]) * 1000)
                done[0], waits[0], last = 0, [0.0], time.monotonic()
            (size,) = conn.execute(SIZE.encode(), way.tables).fetchone() or (0,)
            sizes.append((rates[-1][0], float(size)))
        stop.set()
        for thread in threads:
            thread.join()
    quiet = [n for n, (at, _) in enumerate(rates) if at <= 0][1:] or [0]
    late = [n for n, (at, _) in enumerate(rates) if at > held * 2 / 3] or [len(rates) - 1]
    early = [n for n, (at, _) in enumerate(rates) if 0 < at <= held / 3] or [0]

    def middle(values: list[float], places: list[int]) -> float:
        return statistics.median(values[n] for n in places)

    took = [rate for _, rate in rates]
    size_of = [size for _, size in sizes]
    return Held(
        middle(took, quiet), middle(took, late), middle(claims, quiet), middle(claims, late),
        max(size_of[n] for n in late) / max(0.001, *(size_of[n] for n in early)),
        max(size for at, size in sizes if at > 0), rates, sizes,
    )  # fmt: skip


def measure(run: Run) -> Result:
    before, held, every = run.of(1, 4, 20), run.of(2, 12, run.held), run.of(0.5, 1, 5)
    with server(run.embedded) as made, ExitStack() as stack:
        own, other = made.migrated(), made.new()
        register(own)
        with psycopg.connect(other, autocommit=True) as conn:
            conn.execute(MAKE.encode())
        ways = {
            "ours": Way(own, submit, lambda done: ours(own, 25, done), ("pipeline", "task")),
            "lease": Way(
                other, lambda conn, count: conn.execute(FILL.encode(), {"count": count}),
                lambda done: plain(other, "lease", 25, done), ("peer", "task"),
            ),
        }  # fmt: skip
        if run.peers:
            ways["pgmq"] = _pgmq(made.new(), stack)
        found = {}
        for name in run.dice.sample(list(ways), len(ways)):
            print(f"{name}: {before} s quiet, {held} s with a transaction held", flush=True)
            found[name] = one = observe(ways[name], before, held, every)
            print(f"  {one.rate_before:.0f} → {one.rate_held:.0f} tasks/s, claim {one.claim_before:.1f} → "
                  f"{one.claim_held:.1f} ms, tables × {one.growth:.2f}, at most "
                  f"{one.largest:.1f} MB", flush=True)  # fmt: skip
        about = {"postgres": made.settings(), "rate": RATE, "held": held}
    cases = [
        Case("rate held to before", "×", [{name: found[name].rate_held / found[name].rate_before for name in ways}]),
        Case("claim before", "ms", [{name: found[name].claim_before for name in ways}]),
        Case("claim while held", "ms", [{name: found[name].claim_held for name in ways}]),
        Case("task tables, largest while held", "MB", [{name: found[name].largest for name in ways}]),
        Case("task tables, largest late to early", "×", [{name: found[name].growth for name in ways}]),
    ]
    checks = [
        Check(f"rate after {held} s held, to before", cases[0].median("ours"), 0.9, "at least", "×"),
        Check("task tables: the largest while held", cases[3].median("ours"), BOUND, "at most", " MB"),
    ]
    if held >= TEETH:
        ratio = cases[4].median("ours")
        checks.append(Check("task tables: the largest in the last third to the first", ratio, 1.5, "at most", "×"))
    lines = {f"{name}, MB of task tables": found[name].sizes for name in ways}
    return Result(4, "Held horizon", cases, checks, lines=lines, line_unit="MB", left_out=LEFT_OUT, about=about)


def _pgmq(dsn: str, stack: ExitStack) -> Way:
    queue: Any = peer("pgmq", dsn)
    stack.callback(queue.close)

    def work(done: Done) -> None:
        while True:
            began = time.perf_counter()
            ids = queue.read(25)
            took = time.perf_counter() - began
            if ids:
                queue.delete(ids)
            if done(len(ids), took):
                return

    return Way(dsn, lambda _, count: queue.enqueue(count), work, ("pgmq", "q_bench"))
