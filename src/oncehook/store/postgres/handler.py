"""A handler's transaction on PostgreSQL, and the connections of handlers.

They are apart from those that claim and lease, and are kept from handler to handler without asyncpg's pool, whose reset
costs a round trip. The message that ends a handler's transaction also cleans its session, whatever the handler sent.
Where handlers follow each other, that message also begins the next one's transaction.

The fast path trusts the driver with three things: prepared statements that it keeps, the user that the server reports,
and a transaction that a longer message leaves open. `check_driver` tries them on the first connection. Without the fast
path, as behind a pooler, no statement is kept, the user is always reset and every handler begins its own transaction.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.lease import Settled
from oncehook.observability import signals
from oncehook.store import queries
from oncehook.store.postgres.finish import (
    LEASE_LOST,
    TRANSACTION_REPLACED,
    finish_statement,
    in_one_line,
)
from oncehook.store.postgres.pool import CLOSE_SECONDS, LOST
from oncehook.store.postgres.session import IDLE, HandlerConnection, session_limits, session_name
from oncehook.store.transaction import ENDED, NOT_YOURS, RESETS, Native, Pick, TransactionClosed

STATEMENTS = (
    "begin_handling", "before_reset", "finish", "finish_others", "is_done", "unlock_session", "unlock_guarded_session",
    "clean_session", "deallocate_statements", "guard_session", "session_user",
)  # fmt: skip

FRESH = 0.01
"""For how many seconds a transaction that was begun ahead may wait for its handler: `now()` in it is as old."""

BUSY = 0.03
"""Handlers that begin within so many seconds of each other have their transactions begun ahead."""


PLAIN = {"statement_cache_size": 0}
"""The driver keeps no prepared statement."""


class LeaseLost(asyncpg.PostgresError):
    """What `webhook_finish` raises in PostgreSQL; asyncpg finds it by its code."""

    sqlstate = LEASE_LOST


class TransactionReplaced(asyncpg.PostgresError):
    """The transaction is not the one that was begun for the handler."""

    sqlstate = TRANSACTION_REPLACED


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
        cleans: bool = True,
        fast: bool = True,
        lease: float = 30.0,
        longest: Callable[[], float] = lambda: 300.0,
        worker: Callable[[], str] = lambda: "",
    ) -> None:
        self.database = database
        self.sql = sql
        self._pooler_options = statements  # known once the store is open
        self.timeout = timeout
        self.cleans = cleans
        self.fast = fast
        self.lease = lease
        self.longest = longest
        self.worker = worker
        self.taken = 0  # how many transactions were begun
        self._last_taken = (0.0, 0.0)  # when the last one was, and the one before
        self._sql = {name: in_one_line(sql[name]) for name in STATEMENTS}
        self._unlock = {True: self._sql["unlock_guarded_session"], False: self._sql["unlock_session"]}
        self._before = {  # by `is_as_at_login`
            is_same: self._sql["before_reset"].format(authorization="" if is_same else "RESET SESSION AUTHORIZATION;")
            for is_same in (True, False)
        }
        self._free = asyncio.Semaphore(limit)
        self._waiting: list[HandlerConnection] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False
        self._is_checked = False  # whether the driver does what the fast path needs

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

    def statements(self) -> dict[str, Any]:
        """The driver's options for prepared statements; none are the fast path's."""
        return self._pooler_options() or ({} if self.fast else PLAIN)

    async def _connect(self) -> HandlerConnection:
        limits = session_limits(self.database, self.lease, self.longest())
        connection: HandlerConnection = await asyncpg.connect(
            self.database,
            timeout=self.timeout,
            connection_class=HandlerConnection,
            server_settings={
                "application_name": session_name(self.worker()),
                **({} if self._pooler_options() else limits),
            },
            **self.statements(),
        )
        try:
            if self.statements() or await self._is_fast(connection):
                return connection
        except BaseException:
            connection.terminate()
            raise
        connection.terminate()
        return await self._connect()

    async def _is_fast(self, connection: HandlerConnection) -> bool:
        """Prepare a connection for the fast path; False, and no connection uses it from now on, if that fails."""
        try:
            if not self._is_checked:
                await check_driver(connection, self._sql["session_user"])
                self._is_checked = True
            connection.login = connection.get_settings().session_authorization
        except (AttributeError, TypeError, RuntimeError) as error:
            self.fast = False
            detail = f"asyncpg {asyncpg.__version__} does not do what handlers' connections need: {error!r}"
            signals.emit("fast_path_off", path="handler transactions", detail=detail)
            return False
        if self.cleans:
            await self._send(connection, self._sql["guard_session"])
        return True

    @property
    def _is_guarded(self) -> bool:
        """Whether sessions keep prepared statements of the driver's. Behind a pooler they keep none."""
        return self.cleans and not self.statements()

    async def _begin(self, connection: HandlerConnection) -> None:
        begun_at, connection.begun_at = connection.begun_at, None
        if begun_at is None:
            await self._send(connection, self._beginning())
        elif SYSTEM.monotonic() - begun_at > FRESH:
            await self._send(connection, f"ROLLBACK; {self._beginning()}")

    def _beginning(self) -> str:
        """A pooler refuses settings of a session: there, the transaction has the one that matters."""
        limits = session_limits(self.database, self.lease, self.longest()) if self._pooler_options() else {}
        return self._sql["begin_handling"] + (f"; SET LOCAL {IDLE} = {limits[IDLE]}" if IDLE in limits else "")

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
        """Write what is settled, COMMIT and clean the session, in one message.

        Where a process is stopped here, PostgreSQL goes on to the end alone, and holds no lock. `and_begin` begins the
        next handler's transaction in the same message. It is not chained to another one, whose isolation level and
        access mode it would inherit, and the cleaning is not part of it: a rollback would undo that.
        """
        try:
            await self._send(connection, self._ending(connection, settled, and_begin=and_begin))
        except BaseException as error:
            connection.is_used_up = True  # how far it came is not known
            if isinstance(error, asyncpg.InvalidSQLStatementNameError) and await self._is_done(connection, settled[0]):
                return
            raise
        if self._is_guarded and not connection.is_as_at_login:
            connection.is_used_up = True  # a deferred trigger did that
        if and_begin:
            connection.begun_at = SYSTEM.monotonic()

    async def _is_done(self, connection: HandlerConnection, settled: Settled) -> bool:
        """Whether the message came past its COMMIT. After DEALLOCATE ALL it does, and then fails at `oncehook`."""
        await self._send(connection, f"ROLLBACK; {self._sql['clean_session']}")
        status = await connection.execute(self._sql["is_done"].format(receipt=settled.receipt, lease=settled.lease))
        return bool(status == "SELECT 1")

    def _ending(self, connection: HandlerConnection, settled: Sequence[Settled], *, and_begin: bool) -> str:
        begin = f"; {self._beginning()}" if and_begin else ""
        if not settled:  # a change by an operator, which is of no event
            return f"COMMIT; {self._cleaning()}{begin}"
        if not self.cleans:
            return f"{finish_statement(self._sql, settled, resets=False, guarded=None)}; COMMIT{begin}"
        guarded = self._is_guarded
        before = self._before[guarded and connection.is_as_at_login]
        finish = finish_statement(self._sql, settled, resets=True, guarded=guarded)
        return f"{before}; {finish}; COMMIT AND CHAIN; {self._unlock[guarded]}; COMMIT{begin}"

    def _cleaning(self) -> str:
        """Remove everything that was left in a session, outside of a transaction."""
        guarded = self._is_guarded
        deallocate = self._sql["deallocate_statements"].format(guarded=guarded)
        return f"{self._sql['clean_session']}; {deallocate}; {self._unlock[guarded]}"

    async def _send(self, connection: HandlerConnection, message: str) -> None:
        await connection.execute(message, timeout=self.timeout)

    async def roll_back(self, connection: HandlerConnection) -> None:
        """Undo everything, also what is left in the session. One that cannot be asked is cut."""
        try:
            await self._send(connection, f"ROLLBACK; {self._cleaning()}")
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
            await asyncio.gather(*map(_disconnect, self._waiting))
        finally:
            for connection in self._waiting:  # this was cancelled
                connection.terminate()
            self._waiting.clear()


async def check_driver(connection: HandlerConnection, session_user: str) -> None:
    """Raise an exception unless the driver does what the fast path needs. `session_user` is the query of that name."""
    await connection.execute(f"BEGIN; {session_user}; COMMIT; BEGIN")
    if not connection.is_in_transaction():
        raise RuntimeError("a message that ends with BEGIN leaves no transaction open")
    await connection.execute("ROLLBACK")
    if connection.is_in_transaction():
        raise RuntimeError("a message that ends with ROLLBACK leaves a transaction open")
    reported, user = connection.get_settings().session_authorization, await connection.fetchval(session_user)
    if reported != user:
        raise RuntimeError("the session's user is not reported")


async def _disconnect(connection: HandlerConnection) -> None:
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except (*LOST, asyncpg.PostgresError):
        connection.terminate()


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
        return [tuple(row) for row in await connection.fetch(statement, given)]

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """Write the processed status and COMMIT; False, with everything rolled back, if a lease was lost."""
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
        except TransactionReplaced as error:
            await asyncio.shield(self.rollback())
            raise TransactionClosed(f"{NOT_YOURS} ({RESETS})") from error
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
