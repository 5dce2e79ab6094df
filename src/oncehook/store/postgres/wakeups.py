"""Wake-ups between processes: NOTIFY, and a dedicated connection that listens.

A notification is a hint. It is sent in a separate statement after the commit, because commits that contain NOTIFY wait
for each other. A worker that misses a notification finds the event at its next poll.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.store.postgres.pool import CONNECTION_LOST, PostgresPool, error_summary

CHANNEL = "oncehook"
PING_SECONDS = 20.0
"""After this many silent seconds a listener checks its connection. A half-open one would stay silent forever."""


class PostgresWakeupStore:
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
        if not self.is_on or self._pool.is_pooled:  # a pooler in transaction mode shares its server connections
            return
        connection: Any = None
        try:
            connection = await self._pool.connect("oncehook listen", self._pool.settings.claim_timeout)
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, lambda *_: wake())
            wake()  # events may have been committed before this listens
            while not await _is_set_within(lost, PING_SECONDS):
                await connection.fetchval(self._pool.sql["backend_pid"])
            raise StoreUnavailable("the listening connection was lost")
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {error_summary(error)}") from error
        finally:
            if connection is not None:
                connection.terminate()


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):  # before Python 3.12, `wait_for` may swallow a cancellation
            await event.wait()
    except TimeoutError:
        return False
    return True
