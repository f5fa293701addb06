"""Files into the ledger, with everything a submit does (deduplication, batches, barrier, tasks), against raw COPY.

`copy`     binary COPY into an equal table with the same keys and indexes, which knows no duplicates.
`staged`   binary COPY into a temporary table, and one insert from there into such a table, leaving out what is known.
`arrays`   the same insert from binary arrays, twenty thousand files at a time: how ours sends them.
`submit`   pg_pipeline.coordination.submission.submit; `again`: the same files in a second request, all known.

Rounds are interleaved in random order on the same server (fsync and synchronous_commit on). `--known` files are in the
ledger before. Run: python -m benchmarks.submit [--files 100000] [--known 0] [--rounds 3]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import psycopg

from benchmarks.database import database
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.types import FileVersion

COLUMNS = "key, execution_id, batch, ordinal, size, path, version"
KNOWN = """
insert into pipeline.file (key, execution_id, batch, ordinal, size, path, version)
select pipeline.file_key('bench', '/known/' || n, '1'), 1, (n / 100)::int, (n % 100)::int, 1, '/known/' || n, '1'
from generate_series({first}, {last}) n
"""


class Ways:
    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.db = Database(dsn)
        self.submitted: list[FileVersion] = []
        self.place = 0

    def rows(self, files: Sequence[FileVersion]) -> list[tuple[UUID, int, int, int, int, str, str]]:
        """As the ledger has them; the keys, which a submit must work out, are random here."""
        self.place += 1
        return [(uuid4(), self.place, n // 100, n % 100, f.size, f.path, f.version) for n, f in enumerate(files)]

    def copy(self, files: Sequence[FileVersion], into: str = "peer.file", columns: str = COLUMNS) -> None:
        with (
            self.conn.transaction(),
            self.conn.cursor().copy(f"copy {into} ({columns}) from stdin (format binary)".encode()) as copy,
        ):
            copy.set_types(["uuid", "int8", "int4", "int4", "int8", "text", "text"])
            for row in self.rows(files):
                copy.write_row(row)

    def staged(self, files: Sequence[FileVersion]) -> None:
        with self.conn.transaction():
            self.conn.execute("create temp table staged (like peer.file) on commit drop")
            self.conn.execute("alter table staged alter seen_at set default now()")
            self.copy(files, "staged")
            self.conn.execute("insert into peer.file select * from staged order by key on conflict do nothing")

    def arrays(self, files: Sequence[FileVersion]) -> None:
        with self.conn.transaction():
            rows = self.rows(files)
            for first in range(0, len(rows), submission.CHUNK):
                columns = zip(*rows[first : first + submission.CHUNK], strict=True)
                self.conn.execute(
                    f"insert into peer.file ({COLUMNS}) select * from unnest("
                    "%b::uuid[], %b::int8[], %b::int4[], %b::int4[], %b::int8[], %b::text[], %b::text[]) f(key) "
                    "order by key on conflict do nothing".encode(),
                    [list(column) for column in columns],
                )

    def submit(self, files: Sequence[FileVersion]) -> None:
        answer = submission.submit(self.db, "bench", files, request_key=uuid4().hex, request=uuid4().hex)
        assert answer.taken == len(files), answer
        self.submitted = list(files)

    def again(self, _: Sequence[FileVersion]) -> None:
        answer = submission.submit(self.db, "bench", self.submitted, request_key=uuid4().hex, request=uuid4().hex)
        assert answer.left_out == {"known": len(self.submitted)}, answer


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    for name, value in {"files": 100_000, "known": 0, "rounds": 3}.items():
        arguments.add_argument(f"--{name}", type=int, default=value)
    given = arguments.parse_args()
    with database() as dsn:
        ways = Ways(dsn)
        submission.register_pipeline(ways.db, "bench")
        for first in range(1, given.known + 1, 500_000):
            last = min(first + 499_999, given.known)
            ways.conn.execute(KNOWN.format(first=first, last=last).encode())
            print(f"known: {last}", end="\r", flush=True)
        ways.conn.execute("create schema peer")
        ways.conn.execute("create table peer.file (like pipeline.file including all)")
        ways.conn.execute("insert into peer.file select * from pipeline.file")
        ways.conn.execute("vacuum analyze peer.file, pipeline.file")
        timed: dict[str, list[float]] = {}
        for number in range(given.rounds + 1):  # the first warms up
            names = ["copy", "staged", "arrays", "submit", "again"]
            random.shuffle(names)
            if number == 0 or names.index("again") < names.index("submit"):
                names.remove("again")
                names.append("again")
            for name in names:
                files = [FileVersion(f"/in/{uuid4()}.json", "1", 1000) for _ in range(given.files)]
                way: Callable[[Sequence[FileVersion]], None] = getattr(ways, name)
                ways.conn.execute("checkpoint")
                began = time.perf_counter()
                way(files)
                if number:
                    timed.setdefault(name, []).append(time.perf_counter() - began)
        print(f"{given.files} files, {given.known} known, {given.rounds} rounds; files per second, ratio to copy")
        for name, seconds in timed.items():
            ratios = [c / s for c, s in zip(timed["copy"], seconds, strict=True)]
            rates = sorted(given.files / s for s in seconds)
            print(
                f"{name:>8}: {statistics.median(rates):>9.0f}/s ({rates[0]:.0f} to {rates[-1]:.0f}), "
                f"{statistics.median(ratios):.2f} of copy"
            )
        ways.conn.close()
        ways.db.close()


if __name__ == "__main__":
    main()
