"""pgqueuer: a QueueManager with batch_size n for each worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import PsycopgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.worker import PADDING, AsyncQueue


class Queue(AsyncQueue):
    async def install(self) -> None:
        self.conn = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        self.queries = Queries(PsycopgDriver(self.conn))
        await self.queries.install()

    async def push(self, marks: list[float]) -> None:
        payloads: list[bytes | None] = [json.dumps({"at": mark, "padding": PADDING}).encode() for mark in marks]
        await self.queries.enqueue(["bench"] * len(marks), payloads, [0] * len(marks))

    async def handle(self, job: Job) -> None:
        self.handler(json.loads(job.payload or b"{}")["at"])

    @contextlib.asynccontextmanager
    async def serving(self, n: int, workers: int) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            queues: list[Any] = []
            for _ in range(workers):
                conn = await stack.enter_async_context(await psycopg.AsyncConnection.connect(self.dsn, autocommit=True))
                queues.append(PgQueuer(PsycopgDriver(conn)))
                queues[-1].entrypoint("bench")(self.handle)
            running = [asyncio.ensure_future(queue.run(batch_size=n)) for queue in queues]
            try:
                yield
            finally:
                for queue in queues:
                    queue.shutdown.set()
                await asyncio.gather(*running)

    async def uninstall(self) -> None:
        await self.conn.close()
