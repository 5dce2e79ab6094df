"""Handlers' transactions on SQLite.

One handler's transaction is open at a time in a process, on a connection and a thread of its own: the database has one
writer anyway. It never runs on the connection that claims, and it may hold the write lock only for a limited time.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.sqlite.file import BUSY_MS, LOCKED
from oncehook.store.sqlite.session import HandlerConnection, connect
from oncehook.store.transaction import ENDED, NOT_YOURS, Native, Pick, TransactionClosed

MOST_SECONDS = 2.0
"""How long a handler's transaction may keep the door from writing."""


def held_too_long(seconds: float) -> str:
    """What a handler is told whose transaction was rolled back because it took too long."""
    return (
        f"the handler held SQLite's write lock for more than {seconds:g} s and was rolled back. Do slow work before "
        "its first statement. If it was waiting for the database, another session of yours waits for this one: use "
        "`tx` for that too. Or use PostgreSQL"
    )


_encode = msgspec.json.Encoder().encode


def settle_in(connection: sqlite3.Connection, sql: dict[str, str], settled: Sequence[Settled]) -> set[int]:
    """The mark, inside a transaction; the receipts whose lease still held."""
    given = _encode(settled).decode()
    landed = {row[0] for row in connection.execute(sql["settle"], {"given": given}).fetchall()}
    if any(one.status is not State.PROCESSED for one in settled):
        connection.execute(sql["settle_attempts"], {"given": given, "settled": _encode(sorted(landed)).decode()})
    return landed


class Handling:
    """The connection and the thread of handlers' transactions, and whose turn it is."""

    def __init__(self, path: Path, sql: dict[str, str], writing: threading.Lock) -> None:
        self.path = path
        self.sql = sql
        self.turn = asyncio.Lock()
        self._writing = writing
        self._is_writing = False
        self.connection: HandlerConnection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oncehook-sqlite-handler")

    async def run(self, work: Any) -> Any:
        """Do `work` with the connection, in its thread."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, self._work, work))

    def _work(self, work: Any) -> Any:
        if self.connection is None:
            self.connection = connect(self.path)
        return work(self.connection)

    async def begin(self) -> None:
        await self.run(self._begin)

    def _begin(self, connection: HandlerConnection) -> None:
        if not self._writing.acquire(timeout=BUSY_MS / 1000):
            raise sqlite3.OperationalError(LOCKED)
        self._is_writing = True
        connection.execute("BEGIN IMMEDIATE")

    async def end(self, statement: str) -> None:
        """End the handler's transaction with COMMIT or ROLLBACK. The next one finds nothing of it in the connection."""
        await self.run(lambda connection: self._end(connection, statement))

    def _end(self, connection: HandlerConnection, statement: str) -> None:
        try:
            self._leave_transaction(connection, statement)
        finally:
            if self._is_writing:
                self._is_writing = False
                self._writing.release()

    def _leave_transaction(self, connection: HandlerConnection, statement: str) -> None:
        try:
            if connection.in_transaction:
                connection.execute(statement)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if connection.is_clean:
                connection.forget()
            else:
                self._disconnect()

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._thread.submit(self._disconnect).result()
        self._thread.shutdown()


class SqliteTransaction(Native):
    """A handler's transaction, begun at its first use: `BEGIN IMMEDIATE`, limited in time."""

    def __init__(self, handling: Handling) -> None:
        self.handling = handling
        self.used = False  # and never False again: what was rolled back must not be marked as done
        self._beginning = asyncio.Lock()
        self._limit: asyncio.TimerHandle | None = None
        self._undoing: asyncio.Future[None] | None = None  # its time was up
        self._is_lost = False  # the handler ended it, or SQLite did after an error (INSERT OR ROLLBACK)
        self._finished = False

    async def connection(self) -> "SqliteConnection":
        async with self._beginning:  # a handler may send its first two statements at once
            if not self.used:
                await self._begin()
        return SqliteConnection(self)

    async def ask(self, pick: Pick, given: str) -> list[Any]:
        await self.connection()
        statement = pick(self.handling.sql)
        rows: list[Any] = await self.run(lambda one: one.execute(statement, {"given": given}).fetchall())
        return rows

    async def _begin(self) -> None:
        await self.handling.turn.acquire()
        if self._finished:  # the handler was given up while this waited
            self.handling.turn.release()
            raise TransactionClosed(ENDED)
        self.used = True
        try:
            await self.handling.begin()
        except BaseException:
            await asyncio.shield(self._finish("ROLLBACK"))  # a BEGIN whose waiter was cancelled still happens
            raise
        self._limit = asyncio.get_running_loop().call_later(MOST_SECONDS, self._expire)

    def _expire(self) -> None:
        if self._finished:
            return  # the connection is another handler's by now
        if self.handling.connection is not None:
            self.handling.connection.interrupt()
        self._undoing = asyncio.ensure_future(self._finish("ROLLBACK"))

    async def run(self, work: Any) -> Any:
        if self._undoing is not None:
            raise StoreUnavailable(held_too_long(MOST_SECONDS))
        if self._finished:
            raise TransactionClosed("the transaction could not be begun, or is over")
        if self._is_lost:
            raise TransactionClosed(NOT_YOURS)
        result = await self.handling.run(lambda connection: self._watched(connection, work))
        if self._is_lost:
            raise TransactionClosed(NOT_YOURS)
        return result

    def _watched(self, connection: sqlite3.Connection, work: Any) -> Any:
        """Do `work`, which is one statement, and see whether it ended the transaction: no other one may follow it."""
        try:
            return work(connection)
        finally:
            self._is_lost = self._is_lost or not connection.in_transaction

    async def settle(self, settled: Sequence[Settled]) -> bool:
        if self._limit is not None:
            self._limit.cancel()  # from here on it does not depend on the handler
        try:
            landed = await self.run(lambda connection: self._settle(connection, settled))
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        whole = len(landed) == len(settled)
        await self._finish("COMMIT" if whole else "ROLLBACK")
        return whole

    def _settle(self, connection: sqlite3.Connection, settled: Sequence[Settled]) -> set[int]:
        return settle_in(connection, self.handling.sql, settled)

    async def rollback(self) -> None:
        if self._undoing is not None:
            await asyncio.gather(self._undoing, return_exceptions=True)
        await self._finish("ROLLBACK")

    async def _finish(self, statement: str) -> None:
        if self._finished:
            return
        self._finished = True
        if self._limit is not None:
            self._limit.cancel()
        if self.used:
            try:
                await self.handling.end(statement)
            finally:
                self.handling.turn.release()


class SqliteConnection:
    """What a handler gets as `tx` on SQLite: the same four verbs as on PostgreSQL."""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction

    async def execute(self, sql: str, *args: Any) -> int:
        """Run a statement; how many rows it changed."""
        return int(await self._transaction.run(lambda connection: connection.execute(sql, args).rowcount))

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row of arguments."""
        await self._transaction.run(lambda connection: connection.executemany(sql, rows))

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        def fetch(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            cursor = connection.execute(sql, args)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        rows: list[dict[str, Any]] = await self._transaction.run(fetch)
        return rows

    async def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None:
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: Any) -> Any:
        row = await self.fetchrow(sql, *args)
        return next(iter(row.values())) if row else None
