"""procrastinate: a worker with concurrency n, or several."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import procrastinate

from benchmarks.peers.worker import PADDING, AsyncQueue, tasks


class Queue(AsyncQueue):
    share = 0.1

    async def install(self) -> None:
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.dsn, max_size=20))
        await self.app.open_async()
        await self.app.schema_manager.apply_schema_async()

        @self.app.task(name="bench", queue="bench")
        async def handle(at: float, padding: str) -> None:  # noqa: ARG001
            self.handler(at)

        self.task = handle

    async def push(self, marks: list[float]) -> None:
        await self.task.batch_defer_async(*({"at": mark, "padding": PADDING} for mark in marks))

    @contextlib.asynccontextmanager
    async def serving(self, n: int, workers: int) -> AsyncIterator[None]:
        worker = self.app.run_worker_async
        running = [worker(queues=["bench"], concurrency=n, install_signal_handlers=False) for _ in range(workers)]
        async with tasks(*running):
            yield

    async def uninstall(self) -> None:
        await self.app.close_async()
