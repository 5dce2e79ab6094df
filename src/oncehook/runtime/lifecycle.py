"""Starts and stops an inbox that several callers share: the first start opens it, the last stop closes it."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from oncehook.model.errors import ConfigurationError

Transition = Callable[[], Awaitable[None]]


class Lifecycle:
    """Counts starts and stops, and runs one transition at a time. Other callers wait until it ends."""

    def __init__(self, *, open: Transition, close: Transition) -> None:
        self._open = open
        self._close = close
        self._starts = 0
        self._process = 0  # of the first start
        self._home: asyncio.AbstractEventLoop | None = None  # the loop of the first start
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """True from the beginning of the first start to the beginning of the last stop."""
        return self._starts > 0

    @property
    def is_inherited(self) -> bool:
        """Whether it runs in the parent of this process, which was forked."""
        return self.is_running and self._process != os.getpid()

    async def start(self) -> None:
        async with self._transition_lock():
            loop = asyncio.get_running_loop()
            if self.is_running and loop is not self._home:
                raise ConfigurationError(
                    "the inbox already runs in another event loop of this process, or did so before a fork"
                )
            self._starts += 1
            if self._starts > 1:
                return
            self._process, self._home = os.getpid(), loop
            try:
                await self._open()
            except BaseException:
                self._starts = 0  # other callers of `start` wait, and then try to open it
                raise

    async def stop(self) -> None:
        """Undo one start, and close if it was the last. A cancelled caller still stops before it raises."""
        lock = self._transition_lock()
        try:
            await lock.acquire()
        except asyncio.CancelledError:
            async with lock:  # a second cancellation interrupts it
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
        """Start, and stop at the end of the block, even if the block is cancelled."""
        await self.start()
        try:
            yield
        finally:
            stopping = asyncio.create_task(self.stop())
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                await stopping  # not awaited, it would end with the loop; a second cancellation interrupts it
                raise

    def _transition_lock(self) -> asyncio.Lock:
        """Return the lock of the running loop. An asyncio lock works in one loop, and an inbox may start in another."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock
