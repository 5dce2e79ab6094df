"""Handlers' transactions on PostgreSQL, and the connections they use.

These connections are separate from those that claim and lease. Handlers reuse them without asyncpg's pool, whose reset
costs a round trip. The message that ends a handler's transaction also cleans its session, whatever the handler sent.
While handlers follow each other closely, that message also begins the next handler's transaction.

The fast path relies on three properties of the driver: it keeps prepared statements, it reports the session's user, and
it supports a message that leaves a transaction open. `check_driver` tests them on the first connection. Without the
fast path, as behind a pooler, no statement is kept, the user is always reset and every handler begins its own
transaction.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.lease import Settled
from oncehook.observability import signals
from oncehook.store import queries
from oncehook.store.postgres import hosts
from oncehook.store.postgres.finish import (
    LEASE_LOST,
    TRANSACTION_REPLACED,
    finish_statement,
    in_one_line,
)
from oncehook.store.postgres.pool import CLOSE_SECONDS, CONNECTION_LOST
from oncehook.store.postgres.session import IDLE, HandlerConnection, session_limits, session_name
from oncehook.store.transaction import (
    AFTER_HANDLER_ENDED,
    ENDED_BY_HANDLER,
    RESET_ALL_HINT,
    DriverTransaction,
    StatementSelector,
    TransactionClosed,
)

STATEMENTS = (
    "begin_handling", "before_reset", "finish", "finish_others", "is_committed", "unlock_session",
    "unlock_guarded_session", "clean_session", "deallocate_statements", "guard_session", "session_user",
)  # fmt: skip

MAX_AHEAD_SECONDS = 0.01
"""For how many seconds a transaction that was begun ahead may wait. Its `now()` is as old."""

BUSY_SECONDS = 0.03
"""If handlers begin within this many seconds of each other, their transactions are begun ahead."""


PLAIN = {"statement_cache_size": 0}
"""Connection options with which the driver keeps no prepared statements."""


class LeaseLost(asyncpg.PostgresError):
    """Raised by `webhook_finish` in PostgreSQL. asyncpg finds this class by its code."""

    sqlstate = LEASE_LOST


class TransactionReplaced(asyncpg.PostgresError):
    """The transaction is not the one that was begun for the handler."""

    sqlstate = TRANSACTION_REPLACED


class HandlerConnections:
    """Up to `limit` connections, opened when needed. The most recently used one is reused first."""

    def __init__(
        self,
        database: str,
        sql: dict[str, str],
        *,
        limit: int,
        timeout: float,
        pooler_options: Callable[[], dict[str, Any]],
        cleans_sessions: bool = True,
        fast: bool = True,
        lease: float = 30.0,
        longest_handler: Callable[[], float] = lambda: 300.0,
        worker: Callable[[], str] = lambda: "",
    ) -> None:
        self.database = database
        self.sql = sql
        self._pooler_options = pooler_options  # called after the store is open
        self.timeout = timeout
        self.cleans_sessions = cleans_sessions
        self.fast = fast
        self.lease = lease
        self.longest_handler = longest_handler
        self.worker = worker
        self.taken = 0  # number of transactions taken
        self._last_taken = (0.0, 0.0)  # the times of the last two
        self._sql = {name: in_one_line(sql[name]) for name in STATEMENTS}
        self._unlock = {True: self._sql["unlock_guarded_session"], False: self._sql["unlock_session"]}
        self._reset = {  # by `has_login_user`
            is_same: self._sql["before_reset"].format(authorization="" if is_same else "RESET SESSION AUTHORIZATION;")
            for is_same in (True, False)
        }
        self._slots = asyncio.Semaphore(limit)
        self._idle: list[HandlerConnection] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False
        self._is_checked = False  # whether check_driver has succeeded

    # -- taking and releasing -------------------------------------------------------------------------------------

    async def take(self) -> HandlerConnection:
        """Return a connection in a new transaction."""
        if self._slots.locked():
            async with asyncio.timeout(self.timeout):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            connection = self._last_used() or await self._connect()
            try:
                await self._begin(connection)
            except BaseException:
                connection.terminate()  # it is unknown whether the transaction has begun
                raise
        except BaseException:
            self._slots.release()
            raise
        self.taken += 1
        self._last_taken = SYSTEM.monotonic(), self._last_taken[0]
        return connection

    def are_busy(self, taken: int) -> bool:
        """Whether a handler other than number `taken` has just begun, so that more are likely to follow.

        Behind a pooler this is always False: a transaction that is begun ahead would occupy a server connection.
        """
        if self._cache_options():
            return False
        last, before = self._last_taken
        return SYSTEM.monotonic() - (before if taken == self.taken else last) < BUSY_SECONDS

    def _last_used(self) -> HandlerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _cache_options(self) -> dict[str, Any]:
        """Return the connection options for prepared statements. They are empty on the fast path."""
        return self._pooler_options() or ({} if self.fast else PLAIN)

    async def _connect(self) -> HandlerConnection:
        limits = session_limits(self.database, self.lease, self.longest_handler())
        connection: HandlerConnection = await hosts.connect(
            self.database,
            seconds=self.timeout,
            writes=not self._pooler_options(),
            connection_class=HandlerConnection,
            server_settings={
                "application_name": session_name(self.worker()),
                **({} if self._pooler_options() else limits),
            },
            **self._cache_options(),
        )
        try:
            if self._cache_options() or await self._is_fast(connection):
                return connection
        except BaseException:
            connection.terminate()
            raise
        connection.terminate()
        return await self._connect()

    async def _is_fast(self, connection: HandlerConnection) -> bool:
        """Prepare a connection for the fast path. If that fails, turn the fast path off and return False."""
        try:
            if not self._is_checked:
                await check_driver(connection, self._sql["session_user"])
                self._is_checked = True
            connection.login = connection.get_settings().session_authorization
        except (AttributeError, TypeError, RuntimeError) as error:
            self.fast = False
            detail = f"asyncpg {asyncpg.__version__} does not support the fast path of handlers: {error!r}"
            signals.emit("fast_path_off", path="handler transactions", detail=detail)
            return False
        if self.cleans_sessions:
            await self._send(connection, self._sql["guard_session"])
        return True

    @property
    def _is_guarded(self) -> bool:
        """Whether the driver keeps prepared statements in sessions. Behind a pooler it keeps none."""
        return self.cleans_sessions and not self._cache_options()

    async def _begin(self, connection: HandlerConnection) -> None:
        begun_at, connection.begun_at = connection.begun_at, None
        if begun_at is None:
            await self._send(connection, self._begin_message())
        elif SYSTEM.monotonic() - begun_at > MAX_AHEAD_SECONDS:
            await self._send(connection, f"ROLLBACK; {self._begin_message()}")

    def _begin_message(self) -> str:
        """Return the message that begins a transaction.

        A pooler rejects session settings, so behind one the idle timeout is set for the transaction.
        """
        limits = session_limits(self.database, self.lease, self.longest_handler()) if self._pooler_options() else {}
        return self._sql["begin_handling"] + (f"; SET LOCAL {IDLE} = {limits[IDLE]}" if IDLE in limits else "")

    def release(self, connection: HandlerConnection) -> None:
        """Keep a connection for the next handler, or close it."""
        if self._closed or connection.must_close:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append(connection)
            if connection.begun_at is not None and self._sweeper is None:
                self._sweeper = asyncio.create_task(self._sweep())
        self._slots.release()

    # -- ending ---------------------------------------------------------------------------------------------------

    async def commit(self, connection: HandlerConnection, settled: Sequence[Settled], *, and_begin: bool) -> None:
        """Settle the events, commit and clean the session, in one message.

        If the process stops here, PostgreSQL still executes the whole message and keeps no lock. `and_begin` begins the
        next handler's transaction in the same message. That transaction is not chained to the last one, because it
        would inherit its isolation level and access mode. It also excludes the cleaning, which a rollback would undo.
        """
        try:
            await self._send(connection, self._settle_message(connection, settled, and_begin=and_begin))
        except BaseException as error:
            connection.must_close = True  # it is unknown how much of the message was executed
            if isinstance(error, asyncpg.InvalidSQLStatementNameError) and await self._is_committed(
                connection, settled[0]
            ):
                return
            raise
        if self._is_guarded and not connection.has_login_user:
            connection.must_close = True  # a deferred trigger changed the user
        if and_begin:
            connection.begun_at = SYSTEM.monotonic()

    async def _is_committed(self, connection: HandlerConnection, settled: Settled) -> bool:
        """Whether the COMMIT was executed. After DEALLOCATE ALL the message commits, and then fails at `oncehook`."""
        await self._send(connection, f"ROLLBACK; {self._sql['clean_session']}")
        status = await connection.execute(
            self._sql["is_committed"].format(receipt=settled.receipt, lease=settled.lease)
        )
        return bool(status == "SELECT 1")

    def _settle_message(self, connection: HandlerConnection, settled: Sequence[Settled], *, and_begin: bool) -> str:
        begin = f"; {self._begin_message()}" if and_begin else ""
        if not settled:  # a change by an operator, without an event
            return f"COMMIT; {self._clean_message()}{begin}"
        if not self.cleans_sessions:
            return f"{finish_statement(self._sql, settled, resets=False, guarded=None)}; COMMIT{begin}"
        guarded = self._is_guarded
        reset = self._reset[guarded and connection.has_login_user]
        finish = finish_statement(self._sql, settled, resets=True, guarded=guarded)
        return f"{reset}; {finish}; COMMIT AND CHAIN; {self._unlock[guarded]}; COMMIT{begin}"

    def _clean_message(self) -> str:
        """Return the statements that clean a session outside a transaction."""
        guarded = self._is_guarded
        deallocate = self._sql["deallocate_statements"].format(guarded=guarded)
        return f"{self._sql['clean_session']}; {deallocate}; {self._unlock[guarded]}"

    async def _send(self, connection: HandlerConnection, message: str) -> None:
        await connection.execute(message, timeout=self.timeout)

    async def roll_back(self, connection: HandlerConnection) -> None:
        """Roll back and clean the session. Close the connection if that fails."""
        try:
            await self._send(connection, f"ROLLBACK; {self._clean_message()}")
        except (*CONNECTION_LOST, asyncpg.PostgresError):
            connection.terminate()

    async def _sweep(self) -> None:
        """Roll back transactions that were begun ahead and that no handler uses."""
        try:
            while stale := [connection for connection in self._idle if connection.begun_at is not None]:
                await asyncio.sleep(2 * MAX_AHEAD_SECONDS)
                for connection in stale:
                    await self._end_if_stale(connection)
        finally:
            self._sweeper = None

    async def _end_if_stale(self, connection: HandlerConnection) -> None:
        await self._slots.acquire()
        begun_at = connection.begun_at
        if connection not in self._idle or begun_at is None or SYSTEM.monotonic() - begun_at <= MAX_AHEAD_SECONDS:
            self._slots.release()
            return
        self._idle.remove(connection)
        connection.begun_at = None
        try:
            await self._send(connection, "ROLLBACK")
        except (*CONNECTION_LOST, asyncpg.PostgresError):
            connection.terminate()
        finally:
            self.release(connection)

    async def close(self) -> None:
        """Disconnect. A connection that a handler still uses is closed when it is released."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        try:
            await asyncio.gather(*map(_disconnect, self._idle))
        finally:
            for connection in self._idle:  # only after a cancellation
                connection.terminate()
            self._idle.clear()


async def check_driver(connection: HandlerConnection, session_user: str) -> None:
    """Raise an exception unless the driver supports the fast path. `session_user` is the query of that name."""
    await connection.execute(f"BEGIN; {session_user}; COMMIT; BEGIN")
    if not connection.is_in_transaction():
        raise RuntimeError("a message that ends with BEGIN leaves no transaction open")
    await connection.execute("ROLLBACK")
    if connection.is_in_transaction():
        raise RuntimeError("a message that ends with ROLLBACK leaves a transaction open")
    reported, user = connection.get_settings().session_authorization, await connection.fetchval(session_user)
    if reported != user:
        raise RuntimeError("the driver does not report the session's user")


async def _disconnect(connection: HandlerConnection) -> None:
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except (*CONNECTION_LOST, asyncpg.PostgresError):
        connection.terminate()


class PostgresTransaction(DriverTransaction):
    """A handler's transaction, begun at its first use."""

    def __init__(self, connections: HandlerConnections) -> None:
        self.used = False  # stays True after a rollback, so that the event is not settled without its writes
        self._connections = connections
        self._beginning = asyncio.Lock()
        self._connection: HandlerConnection | None = None
        self._number = 0
        self._finished = False

    async def connection(self) -> HandlerConnection:
        """Return the connection, in its transaction."""
        async with self._beginning:  # a handler may send its first two statements at once
            if self._finished:  # the handler was abandoned while this waited
                raise TransactionClosed(AFTER_HANDLER_ENDED)
            if self._connection is None:
                self._connection, self.used = await self._connections.take(), True
                self._number = self._connections.taken
            return self._connection

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        statement, _ = queries.number_parameters(select(self._connections.sql))
        connection = await self.connection()
        return [tuple(row) for row in await connection.fetch(statement, parameters)]

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """Settle the events as processed, and commit. If a lease was lost, roll back and return False."""
        connection = self._connection
        assert connection is not None
        try:
            if not connection.is_in_transaction():
                raise TransactionClosed(ENDED_BY_HANDLER)
            begins = not connection.must_close and self._connections.are_busy(self._number)
            await self._connections.commit(connection, settled, and_begin=begins)
        except LeaseLost:
            await self.rollback()
            return False
        except TransactionReplaced as error:
            await asyncio.shield(self.rollback())
            raise TransactionClosed(f"{ENDED_BY_HANDLER} ({RESET_ALL_HINT})") from error
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        self._release()
        return True

    async def rollback(self) -> None:
        self._finished = True
        async with self._beginning:
            if self._connection is not None:
                try:
                    await self._connections.roll_back(self._connection)
                finally:
                    self._release()

    def _release(self) -> None:
        self._finished = True
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.release(connection)
