"""Postgres on a disk that fills under load, and is given room again, a few times over; once it also dies meanwhile.

python -m pg_pipeline_tests.crash.full_disk FOLDER, where FOLDER is a small file system of its own.
"""

import errno
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg

from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Lease
from pg_pipeline.coordination.migrations import migrate
from pg_pipeline.coordination.worker import Worker
from pg_pipeline.embedded.server import EmbeddedServer
from pg_pipeline.errors import PgPipelineError
from pg_pipeline_tests.coordination.conftest import files
from pg_pipeline_tests.crash import actor
from pg_pipeline_tests.crash.recovery import go_on, whole
from pg_pipeline_tests.helpers import wait_until

ROUNDS = 3
MINUTES = 120.0
BALLAST = "insert into public.ballast select gen_random_uuid()::text from generate_series(1, 2000)"


class Load:
    """Deliveries without end, asked for until they are answered, and workers that process them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._over = threading.Event()
        self.troubles: Counter[str] = Counter()
        self.defects: list[BaseException] = []
        self.asked: list[str] = []
        self.done = 0
        parts = [self._submit, self._work, self._work]
        self._threads = [threading.Thread(target=self._guarded, args=(part,), daemon=True) for part in parts]
        for thread in self._threads:
            thread.start()

    def _guarded(self, part: Callable[[Database], None]) -> None:
        """Whatever Postgres says while its disk is full is weather; anything else is a defect."""
        while not self._over.is_set():
            try:
                with Database(self._dsn, timeout=5) as db:
                    while not self._over.is_set():
                        part(db)
            except (psycopg.Error, PgPipelineError) as error:
                self.troubles[type(error).__name__] += 1
                self._over.wait(0.1)
            except BaseException as error:  # noqa: BLE001 - shown at the end
                self.defects.append(error)
                return

    def _submit(self, db: Database) -> None:
        key = f"d{len(self.asked)}"
        submission.submit(db, "orders", files(6, key), request_key=key)
        self.asked.append(key)
        self._over.wait(0.1)

    def _work(self, db: Database) -> None:
        with Worker(db, heartbeat_interval=0.1) as worker:
            while not self._over.is_set():
                for lease in worker.claim_or_wait(2, timeout=0.2):
                    self._process(worker, lease)

    def _process(self, worker: Worker, lease: Lease) -> None:
        if lease.kind == "callback":
            actor.process(worker, lease)
            return
        paths = [file.path for file in worker.files(lease)]

        def publish(conn: psycopg.Connection[object]) -> None:
            conn.execute(BALLAST)
            for path in paths:
                conn.execute(
                    "insert into public.sink values (%s, %s, %s, %s)",
                    (lease.execution, lease.generation, lease.batch, path),
                )

        worker.finish(lease, {"rows_in": len(paths), "rows_out": len(paths)}, publish)
        self.done += 1

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(MINUTES)
            assert not thread.is_alive()


def fill(path: Path) -> None:
    """To the last byte."""
    with path.open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def main(folder: Path) -> None:
    server = EmbeddedServer(folder / "postgres", linger=0)
    server.attach()
    migrate(server.dsn())
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(actor.SINK)
        conn.execute("create table public.ballast (it text)")
    with Database(server.dsn()) as db:
        submission.configure_queue(db, "default", lease="2 s", grace="300 ms", breaker_after=0, max_attempts=1000)
        submission.register_pipeline(db, "orders", batch_files=2)
    load = Load(server.dsn())
    for number in range(ROUNDS):
        before = load.done
        wait_until(lambda b=before: load.done > b + 5, timeout=MINUTES, what="some batches to be done")
        fill(folder / "filler")
        postmaster = server.postmaster()
        if number == 1 and postmaster is not None:
            postmaster.kill()  # and comes back on a full disk, or once there is room
        seen = load.troubles.total()
        wait_until(lambda s=seen: load.troubles.total() > s + 3, timeout=MINUTES, what="the full disk to be noticed")
        (folder / "filler").unlink()
        actor.say(f"round {number}", dict(load.troubles))
        before = load.done
        wait_until(lambda b=before: load.done > b + 5, timeout=MINUTES, what="the work to go on")
    load.stop()
    assert not load.defects, load.defects
    assert load.troubles["DiskFull"], load.troubles
    with Database(server.dsn()) as db:
        go_on(db)
        whole(db)
        known = {row["request_key"] for row in db.rows("select request_key from pipeline.execution")}
        assert set(load.asked) <= known
        shown = db.value("select count(*) from public.sink")
        assert shown == 6 * len(known), (shown, len(known))
        actor.say(f"{len(known)} deliveries, rows", shown)
    server.detach()
    wait_until(lambda: not server.held("keeper.lock"), what="the keeper to stop the server and go")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
