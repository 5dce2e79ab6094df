"""The connections to a standby of PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store.executor import Executor
from oncehook.store.postgres.executor import PostgresExecutor
from oncehook.store.postgres.pool import CONNECTION_LOST, error_summary, skip_reset
from oncehook.store.replica import Position

CONNECTIONS = 4


class PostgresStandby:
    """Implements `Standby`. Works through a pooler in transaction mode, because no statement stays prepared."""

    def __init__(self, address: str, seconds: float) -> None:
        self.executor: Executor = PostgresExecutor(self._connection)
        self._address = address
        self._seconds = seconds
        self._pool: asyncpg.Pool[Any] | None = None

    async def open(self) -> None:
        """Make the pool. It connects when it is first used, so the standby may be down."""
        try:
            _ = urlsplit(self._address).port
        except ValueError:
            raise ConfigurationError(
                "read_database is not a PostgreSQL URL: expected postgresql://user:password@host:port/name"
            ) from None
        self._pool = await asyncpg.create_pool(
            self._address,
            min_size=0,
            max_size=CONNECTIONS,
            timeout=self._seconds,
            command_timeout=self._seconds / 2,
            reset=skip_reset,
            statement_cache_size=0,
            server_settings={"application_name": "oncehook reads"},
        )

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def position(self) -> Position:
        return _position(await self.executor.read("standby_position"))

    async def primary_position(self, primary: Executor) -> Position:
        return _position(await primary.read("primary_position"))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise StoreUnavailable("the read replica is not open")
        try:
            async with self._pool.acquire(timeout=self._seconds) as connection:
                try:
                    yield connection
                except (*CONNECTION_LOST, asyncio.CancelledError):
                    connection.terminate()  # its reply was lost or comes too late
                    raise
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {error_summary(error)}") from error


def _position(rows: list[Any]) -> Position:
    return Position(str(rows[0]["database"]), int(rows[0]["position"] or 0), bool(rows[0]["is_standby"]))
