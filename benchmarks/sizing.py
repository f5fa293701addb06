"""What coordination costs alone: CPU, WAL, disk and connections, per file and per batch of a hundred."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import uuid4

import psutil

from benchmarks.database import Server
from pg_pipeline.coordination import submission
from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.lease import Finish
from pg_pipeline.coordination.types import FileVersion
from pg_pipeline.coordination.worker import Worker

BATCH = 100
AT_ONCE = 10_000
TABLES = ("file", "batch", "attempt", "execution", "task")


class Meter:
    """What the server has spent since this was made: seconds of CPU of all its processes, bytes of WAL."""

    def __init__(self, made: Server, db: Database) -> None:
        self._server, self._db = psutil.Process(made.pid), db
        self._cpu, self._wal = self._now()

    def _now(self) -> tuple[float, int]:
        own = self._server.cpu_times()
        seconds = own.user + own.system + own.children_user + own.children_system
        for child in self._server.children():
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            seconds += times.user + times.system
        return seconds, int(self._db.value("select pg_current_wal_insert_lsn() - '0/0'"))

    def spent(self) -> dict[str, float]:
        cpu, wal = self._now()
        return {"cpu": cpu - self._cpu, "wal": wal - self._wal}


def sizes(made: Server, files: int) -> dict[str, Any]:
    """Submits so many files, works them off ten batches at a time, and says what each step cost."""
    dsn = made.migrated()
    with Database(dsn) as db:
        submission.register_pipeline(db, "bench", batch_files=BATCH)
        _submit(db, 1000)  # plans and caches
        meter, cpu = Meter(made, db), time.process_time()
        for _ in range(max(1, files // AT_ONCE)):
            _submit(db, min(files, AT_ONCE))
        submitted = {**meter.spent(), "client": time.process_time() - cpu}
        with Worker(db) as worker:
            _work(worker, 1)
            meter, cpu = Meter(made, db), time.process_time()
            batches = _work(worker, 10)
            worked = {**meter.spent(), "client": time.process_time() - cpu}
        disk = {
            name: int(db.value("select pg_total_relation_size(%s::text::regclass)", (f"pipeline.{name}",)))
            for name in TABLES
        }
        kept = int(db.value("select count(*) from pipeline.file"))
    return {
        "files": files,
        "submit_server_us_a_file": round(1e6 * submitted["cpu"] / files, 1),
        "submit_client_us_a_file": round(1e6 * submitted["client"] / files, 1),
        "submit_wal_bytes_a_file": round(submitted["wal"] / files),
        "work_server_ms_a_batch": round(1e3 * worked["cpu"] / batches, 2),
        "work_client_ms_a_batch": round(1e3 * worked["client"] / batches, 2),
        "work_wal_bytes_a_batch": round(worked["wal"] / batches),
        "disk_mb_a_million_files": {name: round(size / kept * 1e6 / 2**20, 1) for name, size in disk.items()},
        "connections": _connections(dsn),
    }


def _submit(db: Database, count: int) -> None:
    folder = uuid4().hex
    files = [FileVersion(f"/landing/orders/{folder}/{number:09}.json", "1", 1_000_000) for number in range(count)]
    submission.submit(db, "bench", files, request_key=folder, request=folder)


def _work(worker: Worker, limit: int) -> int:
    """One trip of one, or until nothing is left."""
    done = 0
    while leases := worker.claim(limit):
        worker.finish_many([Finish(lease, {"rows_in": 1, "rows_out": 1}) for lease in leases])
        done += sum(lease.kind == "batch" for lease in leases)
        if limit == 1:
            break
    return done


def _connections(dsn: str) -> dict[str, int]:
    """The most that each process held: one that submits, an idle worker, and one that uses four slots at once."""
    count = (
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
        "and application_name = 'pg_pipeline'"
    )
    found = {}
    with Database(dsn) as watch, Database(dsn) as db:
        watch.value("select 1")
        _submit(db, 100)
        found["submitting"] = watch.value(count)
    with Database(dsn) as watch, Database(dsn) as db, Worker(db) as worker:
        watch.value("select 1")
        worker.claim(1)
        found["worker, one slot"] = watch.value(count)
        gate = threading.Barrier(5)

        def slot() -> None:
            def held(conn: Any) -> None:
                conn.execute("select 1")
                gate.wait()
                gate.wait()

            db.write(held)

        threads = [threading.Thread(target=slot) for _ in range(4)]
        for thread in threads:
            thread.start()
        gate.wait()
        found["worker, four slots"] = watch.value(count)
        gate.wait()
        for thread in threads:
            thread.join()
    return found
