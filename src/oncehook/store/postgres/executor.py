"""Statements on PostgreSQL: on the pool's connections, or on one connection."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from oncehook.model.errors import StoreUnavailable
from oncehook.store import queries
from oncehook.store.executor import NOTHING, Run, Work
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.postgres.pool import unavailable

T = TypeVar("T")

SCAN_SECONDS = 600.0
"""How long a statement that visits a whole table may take: a person waits for it, no sender does."""


class PostgresExecutor:
    """Implements `Executor` on connections that `acquire` lends."""

    dialect = POSTGRES

    def __init__(self, acquire: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._acquire = acquire

    async def read(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        async with self._acquire() as connection:
            return await fetch(connection, name, given)

    async def scan(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        async with self._acquire() as connection:
            return await fetch(connection, name, given, timeout=SCAN_SECONDS)

    async def write(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        async with self._acquire() as connection:
            return await fetch(connection, name, given)

    async def transaction(self, work: Work[T]) -> T:
        async with self._acquire() as connection, connection.transaction():
            return await work(run_on(connection))

    def unavailable(self, error: BaseException) -> StoreUnavailable | None:
        return unavailable(error)


def run_on(connection: Any) -> Run:
    """Runs statements on a connection that is in a transaction."""

    async def run(name: str, given: Mapping[str, Any]) -> list[Any]:
        return await fetch(connection, name, given)

    return run


async def fetch(connection: Any, name: str, given: Mapping[str, Any] = NOTHING, **options: Any) -> list[Any]:
    """The rows of a named statement."""
    text, names = queries.numbered(queries.statement(POSTGRES.name, name, frozenset(given)))
    rows: list[Any] = await connection.fetch(text, *[given[one] for one in names], **options)
    return rows
