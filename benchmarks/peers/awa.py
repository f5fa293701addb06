"""awa: a client for each worker, with n handlers at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import awa
from psycopg.conninfo import conninfo_to_dict

from benchmarks.peers.worker import PADDING, AsyncQueue


@dataclass
class Bench:
    at: float
    padding: str


class Queue(AsyncQueue):
    share = 0.5

    async def install(self) -> None:
        where = conninfo_to_dict(self.dsn)
        self.url = f"postgresql://postgres@localhost/{where['dbname']}?host={where['host']}"
        self.client = awa.AsyncClient(self.url)
        await self.client.migrate()
        await self.client.install_queue_storage(schema="awa_bench")

    async def push(self, marks: list[float]) -> None:
        jobs = [Bench(mark, PADDING) for mark in marks]
        if len(jobs) == 1:
            await self.client.insert(jobs[0], queue="bench")
        else:
            await self.client.enqueue_many_copy(jobs, queue="bench")

    async def handle(self, job: Any) -> None:
        self.handler(job.args.at)

    @contextlib.asynccontextmanager
    async def serving(self, n: int, workers: int) -> AsyncIterator[None]:
        clients = [awa.AsyncClient(self.url) for _ in range(workers)]
        for client in clients:
            client.task(Bench, queue="bench")(self.handle)
            await client.start([("bench", n)], queue_storage_schema="awa_bench")
        try:
            yield
        finally:
            for client in clients:
                await client.shutdown()
                await client.close()

    async def uninstall(self) -> None:
        await self.client.close()
