"""Runs statements on SQLite: each read on a new connection, every write in the writer's thread."""

import sqlite3
from collections.abc import Mapping
from typing import Any, TypeVar

from oncehook.model.errors import StoreUnavailable
from oncehook.store import queries
from oncehook.store.executor import NO_PARAMETERS, Work, drive
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.sqlite.file import SqliteFile

T = TypeVar("T")


class SqliteExecutor:
    """Implements `Executor`."""

    dialect = SQLITE

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def read(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        return await self._file.read(_statement(name, parameters), parameters)

    async def scan(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        return await self.read(name, parameters)

    async def write(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        return await self._file.write(lambda connection: fetch(connection, name, parameters))

    async def transaction(self, work: Work[T]) -> T:
        return await self._file.write(lambda connection: transact(connection, work))

    def as_unavailable(self, error: BaseException) -> StoreUnavailable | None:
        if isinstance(error, sqlite3.Error):
            return StoreUnavailable(f"SQLite cannot write to {self._file.path}: {error}")
        return None


def transact(connection: sqlite3.Connection, work: Work[T]) -> T:
    """Run `work` in a transaction in the writer's thread. If this raises, the writer rolls back."""

    async def run(name: str, parameters: Mapping[str, Any]) -> list[Any]:
        return fetch(connection, name, parameters)

    connection.execute("BEGIN IMMEDIATE")
    result = drive(work(run))
    connection.execute("COMMIT")
    return result


def fetch(connection: sqlite3.Connection, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
    """Run a named statement, and return its rows."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor.execute(_statement(name, parameters), parameters).fetchall()


def _statement(name: str, parameters: Mapping[str, Any]) -> str:
    return queries.statement(SQLITE.name, name, frozenset(parameters))
