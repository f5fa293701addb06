"""PGMQ, installed from the SQL that its Python client carries: read with a visibility timeout, then delete."""

from __future__ import annotations

import threading
import time

import psycopg
from pgmq import PGMQueue
from pgmq.install import get_embedded_install_sql
from psycopg_pool import ConnectionPool

PADDING = "x" * 180
POLL = 0.01


class Queue:
    share = 1.0

    def __init__(self, dsn: str, *, install: bool = True) -> None:
        if install:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(get_embedded_install_sql().encode())
        self.dsn = dsn
        self.pool = ConnectionPool(dsn, min_size=1, max_size=16, open=True, kwargs={"autocommit": True})
        self.client = PGMQueue(pool=self.pool, init_extension=False)
        if install:
            self.client.create_queue("bench")

    def enqueue(self, count: int) -> None:
        for first in range(0, count, 1000):
            self.client.send_batch("bench", [{"at": 0.0, "padding": PADDING}] * min(1000, count - first))

    def drain(self, n: int, workers: int, count: int) -> float:
        left, lock = [count], threading.Lock()

        def work() -> None:
            with self.pool.connection() as conn:
                while left[0] > 0:
                    found = self.client.read_batch("bench", vt=30, batch_size=n, conn=conn)
                    if not found:
                        return
                    self.client.delete_batch("bench", [message.msg_id for message in found], conn=conn)
                    with lock:
                        left[0] -= len(found)

        threads = [threading.Thread(target=work) for _ in range(workers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (count - max(left[0], 0)) / (time.perf_counter() - began)

    def read(self, n: int, vt: int = 30) -> list[int]:
        with self.pool.connection() as conn:
            return [message.msg_id for message in self.client.read_batch("bench", vt=vt, batch_size=n, conn=conn)]

    def delete(self, ids: list[int]) -> None:
        with self.pool.connection() as conn:
            self.client.delete_batch("bench", ids, conn=conn)

    def wake(self, rate: float, count: int) -> list[float]:
        """It has no worker: a consumer asks every ten milliseconds."""
        late: list[float] = []

        def work() -> None:
            with self.pool.connection() as conn:
                while len(late) < count:
                    found = self.client.read_batch("bench", vt=30, batch_size=10, conn=conn)
                    late.extend(time.time() - message.message["at"] for message in found)
                    if found:
                        self.client.delete_batch("bench", [message.msg_id for message in found], conn=conn)
                    else:
                        time.sleep(POLL)

        consumer = threading.Thread(target=work)
        consumer.start()
        due = time.monotonic()
        for _ in range(count):
            self.client.send("bench", {"at": time.time(), "padding": PADDING})
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        consumer.join()
        return late

    def close(self) -> None:
        self.pool.close()
