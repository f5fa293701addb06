"""Goal 2. Files into the ledger, with everything a submit does (deduplication, batches, barrier, tasks).

`copy`     binary COPY into an equal table with the same keys and indexes, which knows no duplicates: the limit.
`arrays`   an insert from binary arrays into such a table, leaving out what is known: how ours sends them.
`ours`     pg_pipeline.coordination.submission.submit; `again`: the same files in a second request, all known.

Peers enqueue as many tasks as there are files, through their own bulk call: none of them keeps a ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from uuid import UUID, uuid4

import psycopg

from benchmarks.database import Server, server
from benchmarks.harness import Case, Check, Result, Run
from benchmarks.peers import LEFT_OUT, NAMES, peers
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion

COLUMNS = "key, execution_id, batch, ordinal, size, path, version"
KNOWN = """
insert into pipeline.file (key, execution_id, batch, ordinal, size, path, version)
select pipeline.file_key('bench', '/known/' || n, '1'), -1, (n / 100)::int, (n % 100)::int, 1, '/known/' || n, '1'
from generate_series({first}, {last}) n
"""


class Ledger:
    """A database with so many known files, and an equal table beside the ledger."""

    def __init__(self, made: Server, known: int) -> None:
        dsn = made.migrated()
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.db = Database(dsn)
        self.submitted: list[FileVersion] = []
        self.place = 0
        submission.register_pipeline(self.db, "bench")
        for first in range(1, known + 1, 500_000):
            self.conn.execute(KNOWN.format(first=first, last=min(first + 499_999, known)).encode())
        self.conn.execute("create schema peer")
        self.conn.execute("create table peer.file (like pipeline.file including all)")
        if known:
            self.conn.execute("insert into peer.file select * from pipeline.file")
        self.conn.execute("vacuum analyze peer.file, pipeline.file")

    def rows(self, files: Sequence[FileVersion]) -> list[tuple[UUID, int, int, int, int, str, str]]:
        """As the ledger has them; the keys, which a submit must work out, are random here."""
        self.place += 1
        return [(uuid4(), self.place, n // 100, n % 100, f.size, f.path, f.version) for n, f in enumerate(files)]

    def copy(self, files: Sequence[FileVersion]) -> None:
        rows = self.rows(files)
        statement = f"copy peer.file ({COLUMNS}) from stdin (format binary)"
        with self.conn.transaction(), self.conn.cursor().copy(statement.encode()) as copy:
            copy.set_types(["uuid", "int8", "int4", "int4", "int8", "text", "text"])
            for row in rows:
                copy.write_row(row)

    def arrays(self, files: Sequence[FileVersion]) -> None:
        rows = self.rows(files)
        with self.conn.transaction():
            for first in range(0, len(rows), submission.CHUNK):
                columns = zip(*rows[first : first + submission.CHUNK], strict=True)
                self.conn.execute(
                    f"insert into peer.file ({COLUMNS}) select * from unnest("
                    "%b::uuid[], %b::int8[], %b::int4[], %b::int4[], %b::int8[], %b::text[], %b::text[]) f(key) "
                    "order by key on conflict do nothing".encode(),
                    [list(column) for column in columns],
                )

    def ours(self, files: Sequence[FileVersion]) -> None:
        answer = submission.submit(self.db, "bench", files, request_key=uuid4().hex, request=uuid4().hex)
        assert answer.taken == len(files), answer
        self.submitted = list(files)

    def again(self, _: Sequence[FileVersion]) -> None:
        answer = submission.submit(self.db, "bench", self.submitted, request_key=uuid4().hex, request=uuid4().hex)
        assert answer.left_out == {"known": len(self.submitted)}, answer

    def timed(self, way: str, count: int) -> float:
        files = [FileVersion(f"/in/{uuid4()}.json", "1", 1000) for _ in range(count)]
        self.conn.execute("checkpoint")
        work: Callable[[Sequence[FileVersion]], None] = getattr(self, way)
        began = time.perf_counter()
        work(files)
        return count / (time.perf_counter() - began)

    def close(self) -> None:
        self.conn.close()
        self.db.close()


def measure(run: Run) -> Result:
    count, some = run.of(200, 20_000, 100_000), run.of(100, 10_000, 10_000)
    known = run.of(1000, 200_000, 10_000_000)
    with server(run.embedded) as made, ExitStack() as stack:
        empty, full = Ledger(made, 0), Ledger(made, known)
        stack.callback(empty.close)
        stack.callback(full.close)
        rivals = peers(made, stack, run.of((), ("pgmq", "pgqueuer"), tuple(NAMES))) if run.peers else {}
        for ledger in (empty, full):
            ledger.timed("ours", some)  # plans, caches, and something for `again`

        def theirs(name: str) -> float:
            few = max(100, int(count * rivals[name].share / 10))
            began = time.perf_counter()
            rivals[name].enqueue(few)
            return few / (time.perf_counter() - began)

        cases = []
        for title, ledger in (("none known", empty), (f"{known:,} known", full)):
            ways: dict[str, Callable[[], float]] = {
                way: (lambda way=way, ledger=ledger: ledger.timed(way, count))  # type: ignore[misc]
                for way in ("ours", "again", "copy", "arrays")
            }
            if ledger is empty:
                ways |= {name: (lambda name=name: theirs(name)) for name in rivals}  # type: ignore[misc]
            print(f"{count:,} files, {title}:", flush=True)
            cases.append(Case(f"{count:,} files, {title}", "files/s", run.interleaved(ways)))
        print(f"{some:,} files into each:", flush=True)
        both = run.interleaved(
            {
                "none known": lambda: some / empty.timed("ours", some),
                f"{known:,} known": lambda: some / full.timed("ours", some),
            },
            max(run.rounds, 5),
        )
        cases.append(Case(f"{some:,} new files", "s", both))
        about = {"postgres": made.settings(), "known": known}
    checks = [
        Check(f"of raw COPY, {case.name}", case.ratio("ours", "copy"), 0.5, "at least", "×") for case in cases[:2]
    ] + [
        Check(f"cost of known files to that of new ones, {case.name}", case.ratio("ours", "again"), 1, "at most", "×")
        for case in cases[:2]
    ]
    ratio = cases[2].ratio(f"{known:,} known", "none known")
    checks.append(Check(f"{some:,} files against {known:,} known, to against none", ratio, 2, "at most", "×"))
    return Result(2, "Submit", cases, checks, left_out=LEFT_OUT, about=about)
