"""Retention on SQLite: short transactions of the one writer, and a file that shrinks afterwards."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from oncehook.store.executor import Executor
from oncehook.store.retention import Pruning, Retention
from oncehook.store.rows import Cutoffs
from oncehook.store.sqlite.executor import fetch, transact
from oncehook.store.sqlite.file import SqliteFile


class SqliteRetention(Retention):
    """Implements `RetentionStore`."""

    def __init__(self, file: SqliteFile, executor: Executor) -> None:
        super().__init__(executor)
        self._file = file

    @asynccontextmanager
    async def pruning(self) -> AsyncIterator[Pruning]:
        yield SqlitePruning(self._file, self._executor)  # there is one writer anyway; a second pruner finds less to do

    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int:
        work = self._erasing(receipts, text, actor, detail)

        def erase(connection: sqlite3.Connection) -> int:
            connection.execute("PRAGMA secure_delete = ON").fetchall()  # what is freed is overwritten
            erased = transact(connection, work)
            # The write-ahead log holds the page as it was before, until it starts over.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return len(erased)

        return await self._file.write(erase)


class SqlitePruning(Pruning):
    """Implements `Pruning` of the protocols."""

    def __init__(self, file: SqliteFile, executor: Executor) -> None:
        super().__init__(executor)
        self._file = file

    async def make_days(self) -> None:
        """SQLite has no partitions."""

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        return []

    async def give_back(self) -> bool:
        return await self._file.write(_shrink)


PAGES_AT_ONCE = 256
"""How many pages go back to the disk in one step: a mebibyte."""

FREE_SHARE = 10
"""A tenth of the file may stay free: the next payloads take it, and need not wait for the file to grow."""


def _shrink(connection: sqlite3.Connection) -> bool:
    """Free some pages; whether there are more. A file that was made without auto_vacuum never shrinks."""
    [(free, pages)] = fetch(connection, "free_pages")
    if free < PAGES_AT_ONCE or free < pages / FREE_SHARE:
        return False
    connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")  # `execute` would free one page
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # only then is the file shorter
    [(left, _)] = fetch(connection, "free_pages")
    return bool(left < free)
