"""Statements on SQLite: each read on a connection of its own, every write in the writer's thread."""

import sqlite3
from collections.abc import Mapping
from typing import Any, TypeVar

from oncehook.model.errors import StoreUnavailable
from oncehook.store import queries
from oncehook.store.executor import NOTHING, Work, drive
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.sqlite.file import SqliteFile

T = TypeVar("T")


class SqliteExecutor:
    """Implements `Executor`."""

    dialect = SQLITE

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def read(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        return await self._file.read(_statement(name, given), given)

    async def scan(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        return await self.read(name, given)

    async def write(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        return await self._file.write(lambda connection: fetch(connection, name, given))

    async def transaction(self, work: Work[T]) -> T:
        return await self._file.write(lambda connection: transact(connection, work))

    def unavailable(self, error: BaseException) -> StoreUnavailable | None:
        if isinstance(error, sqlite3.Error):
            return StoreUnavailable(f"SQLite cannot write to {self._file.path}: {error}")
        return None


def transact(connection: sqlite3.Connection, work: Work[T]) -> T:
    """Run `work` in a transaction of the writer, in its thread. The writer rolls back if this raises."""

    async def run(name: str, given: Mapping[str, Any]) -> list[Any]:
        return fetch(connection, name, given)

    connection.execute("BEGIN IMMEDIATE")
    result = drive(work(run))
    connection.execute("COMMIT")
    return result


def fetch(connection: sqlite3.Connection, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
    """The rows of a named statement."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor.execute(_statement(name, given), given).fetchall()


def _statement(name: str, given: Mapping[str, Any]) -> str:
    return queries.statement(SQLITE.name, name, frozenset(given))
