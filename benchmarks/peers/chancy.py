"""chancy: a worker on a queue with the asyncio executor and concurrency n, or several."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import chancy

from benchmarks.peers.worker import PADDING, AsyncQueue, Handler

_handlers: list[Handler] = []  # a job is a function that can be imported, and knows nothing of who serves it


@chancy.job(queue="bench")  # type: ignore[untyped-decorator, unused-ignore]
async def handle(*, at: float, padding: str) -> None:  # noqa: ARG001
    _handlers[-1](at)


class Queue(AsyncQueue):
    share = 0.1

    async def install(self) -> None:
        quiet = logging.getLogger("benchmarks.chancy")
        quiet.setLevel(logging.ERROR)
        self.app: Any = chancy.Chancy(self.dsn, log=quiet, max_connection_pool_size=40)
        await self.app.pool.open()
        await self.app.migrate()

    async def push(self, marks: list[float]) -> None:
        jobs = [handle.job.with_kwargs(at=mark, padding=PADDING) for mark in marks]
        async for _ in self.app.push_many(jobs):
            pass

    @contextlib.asynccontextmanager
    async def serving(self, n: int, workers: int) -> AsyncIterator[None]:
        _handlers.append(self.handler)  # set before serving
        executor = chancy.Chancy.Executor.Async
        queue = chancy.Queue("bench", concurrency=n, executor=executor, polling_interval=1)
        await self.app.declare(queue, upsert=True)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(workers):
                worker = chancy.Worker(self.app, register_signal_handlers=False, shutdown_timeout=5)
                await stack.enter_async_context(worker)
            yield

    async def uninstall(self) -> None:
        await self.app.pool.close()
