"""A handler's transaction on PostgreSQL, and the connections of handlers.

They are apart from those that claim and lease, and are kept from handler to handler without asyncpg's pool, whose reset
costs a round trip. What a handler may have left in its session is cleaned away in the message that ends its
transaction. Where handlers follow each other, that message also begins the next one's.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from oncehook.clock import SYSTEM
from oncehook.receipt import Settled
from oncehook.store import queries
from oncehook.store.postgres_pool import LOST
from oncehook.store.postgres_session import HandlerConnection
from oncehook.transact import ENDED, NOT_YOURS, Native, Pick, TransactionClosed

FRESH = 0.01
"""For how many seconds a transaction that was begun ahead may wait for its handler: `now()` in it is as old."""

BUSY = 0.03
"""Handlers that begin within so many seconds of each other have their transactions begun ahead."""

MARKS = 500
"""So often a prepared mark is used, and then prepared anew: its plan was made for a table that was smaller."""


class LeaseLost(asyncpg.PostgresError):
    """What the marks raise in PostgreSQL; asyncpg finds it by its code."""

    sqlstate = "OH001"


class HandlerConnections:
    """At most `limit` connections, made when they are first needed; the last one that was used is used first."""

    def __init__(
        self,
        database: str,
        sql: dict[str, str],
        *,
        limit: int,
        timeout: float,
        statements: Callable[[], dict[str, Any]],
    ) -> None:
        self.database = database
        self.sql = sql
        self.statements = statements  # something else than usual behind a pooler, which is known once the store is open
        self.timeout = timeout
        self.taken = 0  # how many transactions were begun
        self._last_taken = (0.0, 0.0)  # when the last one was, and the one before
        self._clean = _in_one_line(sql["clean_session"])
        self._mark = _in_one_line(sql["mark"])
        self._mark_prepared = _in_one_line(sql["mark_prepared"])
        self._prepare_mark = _in_one_line(sql["prepare_mark"])
        self._free = asyncio.Semaphore(limit)
        self._waiting: list[HandlerConnection] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False

    # -- taking and giving back -----------------------------------------------------------------------------------

    async def take(self) -> HandlerConnection:
        """A connection in a transaction that was begun just now."""
        if self._free.locked():
            async with asyncio.timeout(self.timeout):
                await self._free.acquire()
        else:
            await self._free.acquire()
        try:
            connection = self._last_used() or await self._connect()
            try:
                await self._begin(connection)
            except BaseException:
                connection.terminate()  # whether it has begun is not known
                raise
        except BaseException:
            self._free.release()
            raise
        self.taken += 1
        self._last_taken = SYSTEM.monotonic(), self._last_taken[0]
        return connection

    def are_busy(self, taken: int) -> bool:
        """Whether another handler than the one that was number `taken` began just now: then more will follow.

        Behind a pooler never: a transaction that is begun ahead would keep a server from everybody else.
        """
        if self.statements():
            return False
        last, before = self._last_taken
        return SYSTEM.monotonic() - (before if taken == self.taken else last) < BUSY

    def _last_used(self) -> HandlerConnection | None:
        while self._waiting:
            connection = self._waiting.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _connect(self) -> HandlerConnection:
        return await asyncpg.connect(
            self.database,
            timeout=self.timeout,
            connection_class=HandlerConnection,
            server_settings={"application_name": "oncehook"},
            **self.statements(),
        )

    async def _begin(self, connection: HandlerConnection) -> None:
        begun_at, connection.begun_at = connection.begun_at, None
        if begun_at is None:
            await self._send(connection, "BEGIN")
        elif SYSTEM.monotonic() - begun_at > FRESH:
            await self._send(connection, "ROLLBACK; BEGIN")

    def give_back(self, connection: HandlerConnection) -> None:
        """For the next handler, unless it is of no more use."""
        if self._closed or connection.is_used_up:
            connection.terminate()
        elif not connection.is_closed():
            self._waiting.append(connection)
            if connection.begun_at is not None and self._sweeping is None:
                self._sweeping = asyncio.create_task(self._sweep())
        self._free.release()

    # -- ending ---------------------------------------------------------------------------------------------------

    async def commit(self, connection: HandlerConnection, settled: Sequence[Settled], *, and_begin: bool) -> None:
        """Mark what is settled, and COMMIT, in one message.

        Where a process is stopped here, PostgreSQL goes on to the end alone, and holds no lock. `and_begin` begins the
        next handler's transaction in the same message; the cleaning is then one of its own, or it would be undone where
        that handler fails. Nor is that one chained to it: it may be of a kind that the handler made the session's own,
        such as READ ONLY.
        """
        end = "COMMIT"
        if not connection.is_clean:
            end = f"COMMIT; BEGIN; {self._clean}; COMMIT{'; BEGIN' if and_begin else ''}"
        elif and_begin:
            end = "COMMIT AND CHAIN"
        message = f"{self._marks(connection, settled)}; {end}" if settled else end
        try:
            await self._send(connection, message)
        except BaseException:
            connection.is_used_up = True  # how far it came is not known
            raise
        connection.is_clean = True
        if and_begin:
            connection.begun_at = SYSTEM.monotonic()

    async def _send(self, connection: HandlerConnection, message: str) -> None:
        """What we say ourselves is not looked at: a handler may be called `prepare`."""
        await asyncpg.Connection.execute(connection, message, timeout=self.timeout)

    def _marks(self, connection: HandlerConnection, settled: Sequence[Settled]) -> str:
        """The statement that marks them as processed. They are of one handler, and ran together."""
        first = settled[0]
        said = {
            "handler": _literal(first.handler),
            "version": _literal(first.version),
            "seconds": "NULL" if first.seconds is None else first.seconds,
        }
        if len(settled) > 1 or connection.is_used_up or self.statements():
            held = sorted((one.receipt, one.lease) for one in settled)  # as everybody takes them
            receipts, leases = (f"'{{{','.join(map(str, numbers))}}}'" for numbers in zip(*held, strict=True))
            return self._mark.format(receipts=receipts, leases=leases, **said)
        mark = self._mark_prepared.format(receipt=first.receipt, lease=first.lease, **said)
        left, connection.marks_left = connection.marks_left, (connection.marks_left or MARKS) - 1
        if left:
            return mark
        return f"{'' if left is None else 'DEALLOCATE oncehook_mark; '}{self._prepare_mark}; {mark}"

    async def roll_back(self, connection: HandlerConnection) -> None:
        """Undo everything, also what is left in the session. One that cannot be asked is cut."""
        try:
            await self._send(connection, f"ROLLBACK; {self._clean}")
            connection.is_clean = True
        except (*LOST, asyncpg.PostgresError):
            connection.terminate()

    async def _sweep(self) -> None:
        """No transaction that was begun ahead stays open when no handler comes for it."""
        try:
            while stale := [one for one in self._waiting if one.begun_at is not None]:
                await asyncio.sleep(2 * FRESH)
                for connection in stale:
                    await self._end_if_stale(connection)
        finally:
            self._sweeping = None

    async def _end_if_stale(self, connection: HandlerConnection) -> None:
        await self._free.acquire()
        begun_at = connection.begun_at
        if connection not in self._waiting or begun_at is None or SYSTEM.monotonic() - begun_at <= FRESH:
            self._free.release()
            return
        self._waiting.remove(connection)
        connection.begun_at = None
        try:
            await self._send(connection, "ROLLBACK")
        except (*LOST, asyncpg.PostgresError):
            connection.terminate()
        finally:
            self.give_back(connection)

    async def close(self) -> None:
        """Disconnect. What a handler still holds is closed when it is given back."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        try:
            while self._waiting:
                connection = self._waiting.pop()
                try:
                    await connection.close(timeout=self.timeout)
                except (*LOST, asyncpg.PostgresError):
                    connection.terminate()
        finally:
            for connection in self._waiting:  # this was cancelled
                connection.terminate()
            self._waiting.clear()


def _in_one_line(sql: str) -> str:
    """A message that is sent with every event, without the comments that explain it."""
    return " ".join(line for line in sql.splitlines() if not line.startswith("--"))


def _literal(text: str | None) -> str:
    """A text as SQL has it, whatever the session takes for a string; without what PostgreSQL cannot hold."""
    if text is None:
        return "NULL"
    return "E'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\ufffd") + "'"


class PostgresTransaction(Native):
    """A handler's transaction, begun at its first use."""

    def __init__(self, home: HandlerConnections) -> None:
        self.used = False  # and never False again: what was rolled back must not be marked as done
        self._home = home
        self._beginning = asyncio.Lock()
        self._connection: HandlerConnection | None = None
        self._number = 0
        self._finished = False

    async def connection(self) -> HandlerConnection:
        """The connection, in its transaction."""
        async with self._beginning:  # a handler may send its first two statements at once
            if self._finished:  # the handler was given up while this waited
                raise TransactionClosed(ENDED)
            if self._connection is None:
                self._connection, self.used = await self._home.take(), True
                self._number = self._home.taken
            return self._connection

    async def ask(self, pick: Pick, given: str) -> list[Any]:
        statement, _ = queries.numbered(pick(self._home.sql))
        connection = await self.connection()
        return [tuple(row) for row in await asyncpg.Connection.fetch(connection, statement, given)]

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """The mark, and the COMMIT of it and all the handler did; False, and nothing of it, if a lease was lost."""
        connection = self._connection
        assert connection is not None
        try:
            if not connection.is_in_transaction():
                raise TransactionClosed(NOT_YOURS)
            begins = not connection.is_used_up and self._home.are_busy(self._number)
            await self._home.commit(connection, settled, and_begin=begins)
        except LeaseLost:
            await self.rollback()
            return False
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        self._give_back()
        return True

    async def rollback(self) -> None:
        self._finished = True
        async with self._beginning:
            if self._connection is not None:
                try:
                    await self._home.roll_back(self._connection)
                finally:
                    self._give_back()

    def _give_back(self) -> None:
        self._finished = True
        connection, self._connection = self._connection, None
        if connection is not None:
            self._home.give_back(connection)
