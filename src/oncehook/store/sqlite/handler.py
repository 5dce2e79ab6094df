"""Handlers' transactions on SQLite.

A process has one handler's transaction open at a time, on a dedicated connection and thread: the database allows only
one writer anyway. The transaction never uses the connection that claims, and it may hold the write lock only for a
limited time.
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
from oncehook.store.transaction import (
    AFTER_HANDLER_ENDED,
    ENDED_BY_HANDLER,
    DriverTransaction,
    StatementSelector,
    TransactionClosed,
)

MAX_HANDLER_SECONDS = 2.0
"""For how many seconds a handler's transaction may block the receiver."""


def lock_timeout_message(seconds: float) -> str:
    """Return the error message of a handler whose transaction was rolled back because it took too long."""
    return (
        f"the handler held SQLite's write lock for more than {seconds:g} s and was rolled back. Do slow work before "
        "the first statement. If the handler waited for the database, another session of your code blocked it: use "
        "`tx` for those statements too. Or use PostgreSQL"
    )


_encode = msgspec.json.Encoder().encode


def settle_receipts(connection: sqlite3.Connection, sql: dict[str, str], settled: Sequence[Settled]) -> set[int]:
    """Settle receipts inside a transaction. Returns the receipts whose lease was still held."""
    parameters = _encode(settled).decode()
    landed = {row[0] for row in connection.execute(sql["settle"], {"input": parameters}).fetchall()}
    if any(attempt.status is not State.PROCESSED for attempt in settled):
        connection.execute(sql["settle_attempts"], {"input": parameters, "settled": _encode(sorted(landed)).decode()})
    return landed


def _retrieve_error(working: "asyncio.Future[Any]") -> None:
    """Let asyncio not print the error of work whose caller was cancelled: nothing awaits it any more."""
    if not working.cancelled():
        working.exception()


class HandlerThread:
    """The connection and the thread of handlers' transactions, and the lock that serializes them."""

    def __init__(self, path: Path, sql: dict[str, str], write_lock: threading.Lock) -> None:
        self.path = path
        self.sql = sql
        self.lock = asyncio.Lock()
        self._write_lock = write_lock
        self._has_write_lock = False
        self.connection: HandlerConnection | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="oncehook-sqlite-handler")

    async def run(self, work: Any) -> Any:
        """Run `work` with the connection, in the thread."""
        working = asyncio.get_running_loop().run_in_executor(self._pool, self._work, work)
        working.add_done_callback(_retrieve_error)
        return await asyncio.shield(working)

    def _work(self, work: Any) -> Any:
        if self.connection is None:
            self.connection = connect(self.path)
        return work(self.connection)

    async def begin(self) -> None:
        await self.run(self._begin)

    def _begin(self, connection: HandlerConnection) -> None:
        if not self._write_lock.acquire(timeout=BUSY_MS / 1000):
            raise sqlite3.OperationalError(LOCKED)
        self._has_write_lock = True
        connection.execute("BEGIN IMMEDIATE")

    async def end(self, statement: str) -> None:
        """End the handler's transaction with COMMIT or ROLLBACK, and clean the connection."""
        await self.run(lambda connection: self._end(connection, statement))

    def _end(self, connection: HandlerConnection, statement: str) -> None:
        try:
            self._leave_transaction(connection, statement)
        finally:
            if self._has_write_lock:
                self._has_write_lock = False
                self._write_lock.release()

    def _leave_transaction(self, connection: HandlerConnection, statement: str) -> None:
        try:
            if statement == "COMMIT" and connection.in_transaction:
                connection.execute(statement)
        finally:
            self._clean(connection)

    def _clean(self, connection: HandlerConnection) -> None:
        """Leave the connection as a new one would be. If that fails, close it, which ends its transaction."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if connection.is_clean:
                connection.reset_rowid()
                return
        except sqlite3.Error:
            pass  # the result of the handler's transaction does not depend on it
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._pool.submit(self._disconnect).result()
        self._pool.shutdown()


class SqliteTransaction(DriverTransaction):
    """A handler's transaction. It begins with `BEGIN IMMEDIATE` at its first use, and its time is limited."""

    def __init__(self, thread: HandlerThread) -> None:
        self.thread = thread
        self.used = False  # stays True after a rollback, so that the event is not settled without its writes
        self._beginning = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._rollback_task: asyncio.Future[None] | None = None  # set when the time is over
        self._is_lost = False  # the handler ended it, or SQLite did (INSERT OR ROLLBACK)
        self._finished = False

    async def connection(self) -> "SqliteConnection":
        async with self._beginning:  # a handler may send its first two statements at once
            if not self.used:
                await self._begin()
        return SqliteConnection(self)

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        await self.connection()
        statement = select(self.thread.sql)
        rows: list[Any] = await self.run(
            lambda connection: connection.execute(statement, {"input": parameters}).fetchall()
        )
        return rows

    async def _begin(self) -> None:
        await self.thread.lock.acquire()
        if self._finished:  # the handler was abandoned while this waited
            self.thread.lock.release()
            raise TransactionClosed(AFTER_HANDLER_ENDED)
        self.used = True
        try:
            await self.thread.begin()
        except BaseException:
            await asyncio.shield(self._finish("ROLLBACK"))  # a BEGIN is executed even if its waiter was cancelled
            raise
        self._timer = asyncio.get_running_loop().call_later(MAX_HANDLER_SECONDS, self._expire)

    def _expire(self) -> None:
        if self._finished:
            return  # another handler uses the connection now
        if self.thread.connection is not None:
            self.thread.connection.interrupt()
        self._rollback_task = asyncio.ensure_future(self._finish("ROLLBACK"))

    async def run(self, work: Any) -> Any:
        if self._rollback_task is not None:
            raise StoreUnavailable(lock_timeout_message(MAX_HANDLER_SECONDS))
        if self._finished:
            raise TransactionClosed("the transaction could not begin, or has ended")
        if self._is_lost:
            raise TransactionClosed(ENDED_BY_HANDLER)
        result = await self.thread.run(lambda connection: self._watch(connection, work))
        if self._is_lost:
            raise TransactionClosed(ENDED_BY_HANDLER)
        return result

    def _watch(self, connection: sqlite3.Connection, work: Any) -> Any:
        """Run `work`, which is one statement, and record whether it ended the transaction.

        A statement that waited while an earlier one ended the transaction is not run: it would commit by itself.
        """
        if not connection.in_transaction:
            self._is_lost = True
            raise TransactionClosed(ENDED_BY_HANDLER)
        try:
            return work(connection)
        finally:
            self._is_lost = self._is_lost or not connection.in_transaction

    async def settle(self, settled: Sequence[Settled]) -> bool:
        if self._timer is not None:
            self._timer.cancel()  # from here on, the handler cannot delay it
        try:
            landed = await self.run(lambda connection: self._settle(connection, settled))
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        is_complete = len(landed) == len(settled)
        await self._finish("COMMIT" if is_complete else "ROLLBACK")
        return is_complete

    def _settle(self, connection: sqlite3.Connection, settled: Sequence[Settled]) -> set[int]:
        return settle_receipts(connection, self.thread.sql, settled)

    async def rollback(self) -> None:
        if self._rollback_task is not None:
            await asyncio.gather(self._rollback_task, return_exceptions=True)
        await self._finish("ROLLBACK")

    async def _finish(self, statement: str) -> None:
        if self._finished:
            return
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()
        if self.used:
            try:
                await self.thread.end(statement)
            finally:
                self.thread.lock.release()


class SqliteConnection:
    """The connection behind `tx` on SQLite, with methods of asyncpg's connection."""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction

    async def execute(self, sql: str, *args: Any) -> int:
        """Run a statement, and return the number of changed rows."""
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
