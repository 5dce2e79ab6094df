"""Runs statements on PostgreSQL, on the pool's connections or on a single connection."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from oncehook.model.errors import StoreUnavailable
from oncehook.store import queries
from oncehook.store.executor import NO_PARAMETERS, Run, Work
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.postgres.pool import as_unavailable

T = TypeVar("T")

SCAN_SECONDS = 600.0
"""Timeout of statements that read a whole table. People wait for them, senders do not."""


class PostgresExecutor:
    """Implements `Executor` on the connections that `acquire` provides."""

    dialect = POSTGRES

    def __init__(self, acquire: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._acquire = acquire

    async def read(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        async with self._acquire() as connection:
            return await fetch(connection, name, parameters)

    async def scan(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        async with self._acquire() as connection:
            return await fetch(connection, name, parameters, timeout=SCAN_SECONDS)

    async def write(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        async with self._acquire() as connection:
            return await fetch(connection, name, parameters)

    async def transaction(self, work: Work[T]) -> T:
        async with self._acquire() as connection, connection.transaction():
            return await work(run_on(connection))

    def as_unavailable(self, error: BaseException) -> StoreUnavailable | None:
        return as_unavailable(error)


def run_on(connection: Any, **options: Any) -> Run:
    """Return a function that runs statements on a connection that is in a transaction."""

    async def run(name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return await fetch(connection, name, parameters, **options)

    return run


async def fetch(connection: Any, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS, **options: Any) -> list[Any]:
    """Run a named statement, and return its rows."""
    text, names = queries.number_parameters(queries.statement(POSTGRES.name, name, frozenset(parameters)))
    rows: list[Any] = await connection.fetch(text, *[parameters[key] for key in names], **options)
    return rows
