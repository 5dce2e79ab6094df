"""Retention on SQLite: short transactions of the writer, then the file is shrunk."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from oncehook.store.executor import Executor, Work
from oncehook.store.leadership import Leadership, SqlLeadershipStore
from oncehook.store.retention import PRUNE, PRUNE_TERM, SqlPruning, SqlRetentionStore
from oncehook.store.rows import Cutoffs
from oncehook.store.sqlite.executor import fetch, transact
from oncehook.store.sqlite.file import SqliteFile


class SqliteRetentionStore(SqlRetentionStore):
    """Implements `RetentionStore`."""

    def __init__(self, file: SqliteFile, executor: Executor) -> None:
        super().__init__(executor)
        self._file = file
        self._leaderships = SqlLeadershipStore(executor)

    @asynccontextmanager
    async def start_pruning(self) -> AsyncIterator[SqlPruning | None]:
        async with self._leaderships.taken(PRUNE, PRUNE_TERM) as leadership:
            yield None if leadership is None else SqlitePruning(self._file, self._executor, leadership)

    async def _run_erasing(self, work: Work[list[Any]]) -> int:
        def erase(connection: sqlite3.Connection) -> int:
            connection.execute("PRAGMA secure_delete = ON").fetchall()  # overwrite deleted content
            erased = transact(connection, work)
            # The write-ahead log keeps the old page until it is truncated.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return len(erased)

        return await self._file.write(erase)


class SqlitePruning(SqlPruning):
    """Implements `Pruning`."""

    def __init__(self, file: SqliteFile, executor: Executor, leadership: Leadership) -> None:
        super().__init__(executor, leadership)
        self._file = file

    async def create_days(self) -> None:
        """Do nothing: SQLite has no partitions."""

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        return []

    async def free_space(self) -> bool:
        return await self._file.write(_shrink)


PAGES_AT_ONCE = 256
"""How many pages one step frees: 1 MiB."""

MAX_FREE_SHARE = 10
"""A tenth of the file may stay free, so that the file need not grow for the next payloads."""


def _shrink(connection: sqlite3.Connection) -> bool:
    """Free some pages. Returns whether there are more. A file without auto_vacuum never shrinks."""
    [(free, pages)] = fetch(connection, "free_pages")
    if free < PAGES_AT_ONCE or free < pages / MAX_FREE_SHARE:
        return False
    connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")  # `execute` would free only one page
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # the file shrinks only at a checkpoint
    [(remaining, _)] = fetch(connection, "free_pages")
    return bool(remaining < free)
