"""Starts and stops of an inbox that several callers share: the first start opens it, the last stop closes it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Transition = Callable[[], Awaitable[None]]


class Lifecycle:
    """Counts starts and stops, and runs one transition at a time: whoever comes meanwhile waits for it to end."""

    def __init__(self, *, open: Transition, close: Transition) -> None:
        self._open = open
        self._close = close
        self._starts = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """Whether it is started: from the beginning of the first start to the beginning of the last stop."""
        return self._starts > 0

    async def start(self) -> None:
        async with self._transition_lock():
            self._starts += 1
            if self._starts > 1:
                return
            try:
                await self._open()
            except BaseException:
                self._starts = 0  # other starts wait, and try it themselves
                raise

    async def stop(self) -> None:
        """Close after the last start, also when cancelled while another transition runs; else change nothing."""
        lock = self._transition_lock()
        try:
            await lock.acquire()
        except asyncio.CancelledError:
            async with lock:  # whoever cancels again cuts it short
                await self._stop()
            raise
        try:
            await self._stop()
        finally:
            lock.release()

    async def _stop(self) -> None:
        if self._starts > 0:
            self._starts -= 1
            if self._starts == 0:
                await self._close()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start, and stop at the end of the block, also when the block is cancelled."""
        await self.start()
        try:
            yield
        finally:
            stopping = asyncio.create_task(self.stop())
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                await stopping  # left behind, it would be cut off with the loop; whoever cancels again cuts it short
                raise

    def _transition_lock(self) -> asyncio.Lock:
        """Return the lock of the running loop: an asyncio lock serves one loop, and an inbox may start in another."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock
