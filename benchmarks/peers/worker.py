"""Peers that run handlers of their own in asyncio: what is common to measuring them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

PADDING = "x" * 180  # with the rest, 200 bytes a task
PATIENCE = 4.0  # seconds until a round counts what was done by then

Handler = Callable[[float], None]


class AsyncQueue:
    """One loop in one thread for the whole life of the peer: its pools belong to it."""

    share = 1.0

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.handler: Handler = lambda _: None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self.install())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # What each peer says for itself.
    async def install(self) -> None:
        raise NotImplementedError

    async def push(self, marks: list[float]) -> None:
        """Send a task for each mark, in one call where there is one."""
        raise NotImplementedError

    def serving(self, n: int, workers: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Workers that call `self.handler` with each task's mark."""
        raise NotImplementedError

    async def uninstall(self) -> None:
        """Close what install opened."""

    # What is asked of all of them.
    def enqueue(self, count: int) -> None:
        self.run(self._enqueue(count))

    async def _enqueue(self, count: int) -> None:
        for first in range(0, count, 1000):
            await self.push([0.0] * min(1000, count - first))

    def drain(self, n: int, workers: int, count: int) -> float:
        return float(self.run(self._drain(n, workers, count)))

    async def _drain(self, n: int, workers: int, count: int) -> float:
        done: list[float] = []
        self.handler = lambda _: done.append(time.perf_counter())
        until = time.monotonic() + PATIENCE
        async with self.serving(n, workers):
            while len(done) < count and time.monotonic() < until:
                await asyncio.sleep(0.02)
            handled = list(done)
        return (len(handled) - 1) / (handled[-1] - handled[0]) if len(handled) > 1 else 0.0

    def wake(self, rate: float, count: int) -> list[float]:
        return list(self.run(self._wake(rate, count)))

    async def _wake(self, rate: float, count: int) -> list[float]:
        late: list[float] = []
        self.handler = lambda mark: late.append(time.time() - mark)
        async with self.serving(10, 1):
            await self.push([time.time()])
            await asyncio.sleep(1)  # the workers' own start is not asked for
            late.clear()
            due = time.monotonic()
            for _ in range(count):
                await self.push([time.time()])
                due += 1 / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            until = time.monotonic() + PATIENCE
            while len(late) < count and time.monotonic() < until:
                await asyncio.sleep(0.02)
        return late

    def close(self) -> None:
        self.run(self.uninstall())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@contextlib.asynccontextmanager
async def tasks(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Under way inside, cancelled at the end."""
    running = [asyncio.ensure_future(one) for one in work]
    try:
        yield
    finally:
        for one in running:
            one.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
