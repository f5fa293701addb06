"""DBOS: workflows of a queue whose one process runs n × workers of them at a time."""

from __future__ import annotations

import logging
import time

from dbos import DBOS, DBOSConfig

from benchmarks.peers.worker import PADDING, PATIENCE

_done: list[float] = []
_late: list[float] = []


@DBOS.workflow()
def handle(at: float, padding: str) -> None:  # noqa: ARG001
    _done.append(time.perf_counter())
    _late.append(time.time() - at)


class Queue:
    share = 0.1

    def __init__(self, dsn: str) -> None:
        logging.getLogger("dbos").setLevel(logging.ERROR)
        url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
        DBOS(config=DBOSConfig(name="bench", system_database_url=url, run_admin_server=False, log_level="ERROR"))
        DBOS.launch()
        self.rounds = 0

    @property
    def name(self) -> str:
        """A queue a round: one that is registered is served, and tasks must wait until all are there."""
        return f"bench{self.rounds}"

    def serve(self, concurrency: int) -> None:
        DBOS.register_queue(self.name, worker_concurrency=concurrency, polling_interval_sec=0.01)

    def enqueue(self, count: int) -> None:
        self.rounds += 1
        for _ in range(count):
            DBOS.enqueue_workflow(self.name, handle, 0.0, PADDING)

    def drain(self, n: int, workers: int, count: int) -> float:
        _done.clear()
        self.serve(n * workers)
        self._until(_done, count)
        return (len(_done) - 1) / (_done[-1] - _done[0]) if len(_done) > 1 else 0.0

    def _until(self, found: list[float], count: int) -> None:
        until = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < until:
            time.sleep(0.02)

    def wake(self, rate: float, count: int) -> list[float]:
        self.rounds += 1
        self.serve(10)
        _late.clear()
        due = time.monotonic()
        for _ in range(count):
            DBOS.enqueue_workflow(self.name, handle, time.time(), PADDING)
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        self._until(_late, count)
        return list(_late)

    def close(self) -> None:
        DBOS.destroy()
