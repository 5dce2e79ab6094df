"""Wake-ups across processes: NOTIFY, and a connection of its own that listens.

A notification is a hint. It is sent after the commit in a statement of its own, because inside the transaction it would
make commits wait for each other; whoever misses one finds the work by looking.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.store.postgres.pool import LOST, PostgresPool, told

CHANNEL = "oncehook"
PING_SECONDS = 20.0
"""How often a silent listener asks whether its connection still stands: a half-open one would stay silent for ever."""


class PostgresWakeups:
    """Implements `WakeupStore`."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    @property
    def is_on(self) -> bool:
        return self._pool.settings.notify

    async def notify(self) -> None:
        if not self.is_on:
            return
        try:
            async with self._pool.connection() as connection:
                await connection.fetch(self._pool.sql["notify"])
        except StoreUnavailable:
            pass

    async def listen(self, wake: Callable[[], None]) -> None:
        if not self.is_on or self._pool.pooled:  # a pooler in transaction mode would listen on anybody's connection
            return
        connection: Any = None
        try:
            connection = await self._pool.connect("oncehook listen", self._pool.settings.claim_timeout)
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, lambda *_: wake())
            wake()  # what was committed while nobody listened
            while not await _within(lost, PING_SECONDS):
                await connection.fetchval(self._pool.sql["backend"])
            raise StoreUnavailable("the connection that listens was lost")
        except (*LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {told(error)}") from error
        finally:
            if connection is not None:
                connection.terminate()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):  # before Python 3.12 `wait_for` may swallow the end of the listener
            await event.wait()
    except TimeoutError:
        return False
    return True
