"""A client that belongs to one event loop. It is opened at its first use, and again in another loop."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

CLOSE_SECONDS = 2.0
"""How long a client may take to close. A server that does not answer must not delay a stop."""


class LoopClient(Generic[T]):
    """Opens one client for all concurrent callers. A failed opening is tried again by the next caller."""

    def __init__(self, open: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]]) -> None:
        self._open = open
        self._close = close
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._client: T | None = None

    async def get(self) -> T:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # an inbox may be started again in another event loop
            self._loop, self._opening, self._client = loop, asyncio.Lock(), None
        async with self._opening:
            if self._client is None:
                self._client = await self._open()
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            with suppress(Exception):  # it is not used again, whatever happens to it
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._close(client)
