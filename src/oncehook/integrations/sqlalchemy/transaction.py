"""A handler's transaction on a SQLAlchemy session, as the worker, a rehearsal and the session use it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection, event, text

from oncehook.integrations.sqlalchemy.cleaner import KEY, SettleFenced, close_afterwards
from oncehook.integrations.sqlalchemy.session import HandlerSession, used_by_oncehook
from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Settled
from oncehook.store.sqlite import handler as sqlite_handler
from oncehook.store.transaction import AFTER_HANDLER_ENDED, ENDED_BY_HANDLER, StatementSelector, TransactionClosed

if TYPE_CHECKING:
    from oncehook.integrations.sqlalchemy.engine import Sessions

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class SessionTransaction(ABC):
    """A handler's transaction on a session. Its code is synchronous; a subclass runs it in a greenlet or a thread."""

    in_use: AbstractContextManager[Any]
    session: HandlerSession
    tx: Any

    def __init__(self, sessions: "Sessions") -> None:
        self.sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._driver: Any = None
        self._write_lock: asyncio.Lock | None = None  # not None while this transaction holds it
        self._limit: asyncio.TimerHandle | None = None
        self._interruption: asyncio.Task[None] | None = None
        self._ended = False
        self._is_lost = False  # the handler ended the transaction, or SQLite did after an error
        self._finished = False
        self._settled: Sequence[Settled] = ()
        self._listeners: dict[str, Callable[..., None]] = {}

    @abstractmethod
    async def _run(self, work: Callable[[HandlerSession], T]) -> T:
        """Run `work` with the session, in the greenlet or thread that its driver needs."""

    @abstractmethod
    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of the event loop, from `work` or from the handler's use of the session."""

    # -- used by the worker ---------------------------------------------------------------------------------------

    @property
    def used(self) -> bool:
        return self._interruption is not None or self.session.in_transaction()

    async def connection(self) -> Any:
        return await self._run(lambda session: session.connection())

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        self._check_limit()
        if self._finished:
            raise TransactionClosed(AFTER_HANDLER_ENDED)
        if self.sessions.on_sqlite and self._write_lock is None:
            await self._acquire_write_lock()
        statement = text(select(self.sessions.store.sql)).execution_options(**{KEY: "ours"})
        return await self._run_statement(
            lambda session: [tuple(row) for row in session.execute(statement, {"input": parameters})]
        )

    async def _run_statement(self, work: Callable[[HandlerSession], T]) -> T:
        return await self._run(work)

    def make_tx(self, *, is_async: bool) -> Any:
        """Return the `tx` of the handler."""
        self.sessions.check_kind("the handler", is_async=is_async)
        return self.tx

    def close_tx(self) -> None:
        """Close the `tx` of the handler, which has ended."""
        self._ended = True

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """Flush the handler's work, write the processed status and commit both. If this raises, all is rolled back."""
        self.close_tx()
        try:
            self._check_limit()
            self._stop_limit()
            if self.sessions.on_sqlite and self._write_lock is None:  # objects were added, but not flushed yet
                await self._acquire_write_lock()
            landed = await self._run(lambda session: self._settle(session, settled))
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        if not landed:
            await self.rollback()
        self._finished = True
        self._release_write_lock()
        return landed

    def _settle(self, session: HandlerSession, settled: Sequence[Settled]) -> bool:
        session.flush()
        self._check_transaction()
        session.connection()  # begins the transaction if nothing was sent
        if self.sessions.on_sqlite:
            landed = session.execute(
                text(self.sessions.store.sql["settle"]), {"input": _encode(settled).decode()}
            ).all()
            if len(landed) != len(settled):
                return False
        self._settled = settled
        try:
            session.commit()
        except SettleFenced:
            return False
        session.close()
        return True

    async def rollback(self) -> None:
        self.close_tx()
        if self._finished:
            return
        self._finished = True
        self._stop_limit()
        if self._interruption is not None:
            await asyncio.gather(self._interruption, return_exceptions=True)
        try:
            await self._run(_roll_back)
        finally:
            self._release_write_lock()

    # -- used by a rehearsal --------------------------------------------------------------------------------------

    def watch(self, begins: Callable[[str, tuple[Any, ...]], Any], ends: Callable[[int | None], None]) -> None:
        """Call `begins` with each statement of the handler and its parameters, and `ends` with its number of rows."""

        def before(_connection: Any, _cursor: Any, sql: str, parameters: Any, run: Any, *_: Any) -> None:
            if KEY not in run.execution_options:
                begins(sql, tuple(parameters.values() if isinstance(parameters, Mapping) else parameters or ()))

        def after(_connection: Any, cursor: Any, _sql: str, _parameters: Any, run: Any, *_: Any) -> None:
            if KEY not in run.execution_options:
                ends(cursor.rowcount if cursor.rowcount >= 0 else None)

        self._listeners = {"before_cursor_execute": before, "after_cursor_execute": after}

    async def flush(self) -> None:
        """Send objects that were added but not flushed, as settling does."""
        if self.session.new or self.session.dirty or self.session.deleted:
            await self._run(lambda session: session.flush())

    # -- used by the session --------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if used_by_oncehook.get() is self.session:
            return
        if self._ended:
            raise TransactionClosed(AFTER_HANDLER_ENDED)
        self._check_limit()

    def begun(self, connection: Connection) -> None:
        """Begin the transaction: the session has a connection, and has not sent any statement."""
        self._driver = connection.connection.driver_connection
        if self.sessions.on_sqlite and self._write_lock is None:
            self._wait(self._acquire_write_lock())
        try:
            self.sessions.cleaner.begin(connection)
        except BaseException:
            self._loop.call_soon_threadsafe(self._release_write_lock)
            raise
        event.listen(connection, "commit", self._before_commit)
        event.listen(connection, "rollback", self._before_rollback)
        if self.sessions.on_sqlite:
            event.listen(connection, "before_cursor_execute", self._before_statement)
            self._loop.call_soon_threadsafe(self._start_limit)
        for name, listener in self._listeners.items():
            event.listen(connection, name, listener)

    def _before_statement(self, *_: Any) -> None:
        """Check each statement, including those that a handler sends through the session's connection."""
        self.check_open()
        self._check_transaction()

    def _before_commit(self, connection: Connection) -> None:
        if used_by_oncehook.get() is self.session:
            self.sessions.cleaner.before_commit(connection, self._settled)
        else:
            self._is_lost = True
            close_afterwards(connection)
            raise TransactionClosed(ENDED_BY_HANDLER)

    def _before_rollback(self, connection: Connection) -> None:
        self.sessions.cleaner.before_rollback(connection)
        if used_by_oncehook.get() is not self.session:  # by the handler or a failed flush: no further checks
            close_afterwards(connection)

    def _check_transaction(self) -> None:
        """Raise TransactionClosed if the transaction has ended. On PostgreSQL, the last statement checks that."""
        if self.sessions.on_sqlite and self._driver is not None:
            self._is_lost = self._is_lost or not self._driver.in_transaction
        if self._is_lost:
            raise TransactionClosed(ENDED_BY_HANDLER)

    # -- SQLite: one writer, for a limited time -------------------------------------------------------------------

    async def _acquire_write_lock(self) -> None:
        lock = self.sessions.store.database.handler_lock
        assert lock is not None
        await lock.acquire()
        if self._finished:  # rolled back while it waited
            lock.release()
            self.check_open()
        self._write_lock = lock

    def _release_write_lock(self) -> None:
        lock, self._write_lock = self._write_lock, None
        if lock is not None:
            lock.release()

    def _start_limit(self) -> None:
        if self._write_lock is not None and not self._ended:
            self._limit = self._loop.call_later(sqlite_handler.MAX_HANDLER_SECONDS, self._expire)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()

    def _expire(self) -> None:
        self._interruption = self._loop.create_task(self._interrupt_handler())

    async def _interrupt_handler(self) -> None:
        """Take the write lock from the handler: interrupt its statement, roll back, and reject further statements."""
        try:
            await self._interrupt_and_roll_back()
        finally:
            self._release_write_lock()

    @abstractmethod
    async def _interrupt_and_roll_back(self) -> None:
        """Interrupt the statement that SQLite runs, and roll back in the driver. The session notices that later."""

    def _check_limit(self) -> None:
        if self._interruption is not None:
            raise StoreUnavailable(sqlite_handler.lock_timeout_message(sqlite_handler.MAX_HANDLER_SECONDS))


def _roll_back(session: HandlerSession) -> None:
    try:
        session.rollback()
        session.close()
    except Exception:  # the connection cannot be reused, whatever the error is
        session.invalidate()
