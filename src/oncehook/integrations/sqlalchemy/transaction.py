"""A handler's transaction on a session: what the processor, a rehearsal and the session itself need of it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection, event, text

from oncehook.integrations.sqlalchemy.cleaner import KEY, LeaseLost, close_afterwards
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
    """A handler's transaction on a session. What is done here is written once, and run in a greenlet or a thread."""

    in_use: AbstractContextManager[Any]
    session: HandlerSession
    tx: Any

    def __init__(self, sessions: "Sessions") -> None:
        self.sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._driver: Any = None
        self._turn: asyncio.Lock | None = None  # ours while this is not None
        self._limit: asyncio.TimerHandle | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._ended = False
        self._is_lost = False  # the handler ended it, or SQLite did after an error
        self._finished = False
        self._settled: Sequence[Settled] = ()
        self._watched: dict[str, Callable[..., None]] = {}

    @abstractmethod
    async def _run(self, work: Callable[[HandlerSession], T]) -> T:
        """Do `work` with the session, where its driver wants to be used."""

    @abstractmethod
    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the loop, from inside `work` or a handler's own use of the session."""

    # -- for the processor ----------------------------------------------------------------------------------------

    @property
    def used(self) -> bool:
        return self._cutting is not None or self.session.in_transaction()

    async def connection(self) -> Any:
        return await self._run(lambda session: session.connection())

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        self._check_limit()
        if self._finished:
            raise TransactionClosed(AFTER_HANDLER_ENDED)
        if self.sessions.on_sqlite and self._turn is None:
            await self._take_turn()
        statement = text(select(self.sessions.store.sql)).execution_options(**{KEY: "ours"})
        return await self._ask(
            lambda session: [tuple(row) for row in session.execute(statement, {"input": parameters})]
        )

    async def _ask(self, work: Callable[[HandlerSession], T]) -> T:
        return await self._run(work)

    def make_tx(self, *, is_async: bool) -> Any:
        """What the handler gets as `tx`."""
        self.sessions.check_kind("the handler", is_async=is_async)
        return self.tx

    def close_tx(self) -> None:
        """The handler has ended: what it got is dead."""
        self._ended = True

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """The marks after all of the handler's work, and the COMMIT of both. Whatever it raises, all is rolled back."""
        self.close_tx()
        try:
            self._check_limit()
            self._stop_limit()
            if self.sessions.on_sqlite and self._turn is None:  # only added to, not flushed yet
                await self._take_turn()
            landed = await self._run(lambda session: self._settle(session, settled))
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        if not landed:
            await self.rollback()
        self._finished = True
        self._give_turn()
        return landed

    def _settle(self, session: HandlerSession, settled: Sequence[Settled]) -> bool:
        session.flush()
        self._check_transaction()
        session.connection()  # also where nothing was sent so far
        if self.sessions.on_sqlite:
            landed = session.execute(
                text(self.sessions.store.sql["settle"]), {"input": _encode(settled).decode()}
            ).all()
            if len(landed) != len(settled):
                return False
        self._settled = settled
        try:
            session.commit()
        except LeaseLost:
            return False
        session.close()
        return True

    async def rollback(self) -> None:
        self.close_tx()
        if self._finished:
            return
        self._finished = True
        self._stop_limit()
        if self._cutting is not None:
            await asyncio.gather(self._cutting, return_exceptions=True)
        try:
            await self._run(_undo)
        finally:
            self._give_turn()

    # -- for a rehearsal ------------------------------------------------------------------------------------------

    def watch(self, begins: Callable[[str, tuple[Any, ...]], Any], ends: Callable[[int | None], None]) -> None:
        """Tell of every statement of the handler, with its parameters, and of how many rows it changed or returned."""

        def before(_connection: Any, _cursor: Any, sql: str, parameters: Any, run: Any, *_: Any) -> None:
            if KEY not in run.execution_options:
                begins(sql, tuple(parameters.values() if isinstance(parameters, Mapping) else parameters or ()))

        def after(_connection: Any, cursor: Any, _sql: str, _parameters: Any, run: Any, *_: Any) -> None:
            if KEY not in run.execution_options:
                ends(cursor.rowcount if cursor.rowcount >= 0 else None)

        self._watched = {"before_cursor_execute": before, "after_cursor_execute": after}

    async def flush(self) -> None:
        """Send what was only added so far, as it would be before the mark."""
        if self.session.new or self.session.dirty or self.session.deleted:
            await self._run(lambda session: session.flush())

    # -- for the session ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if used_by_oncehook.get() is self.session:
            return
        if self._ended:
            raise TransactionClosed(AFTER_HANDLER_ENDED)
        self._check_limit()

    def begun(self, connection: Connection) -> None:
        """The session has a connection, in a transaction that has not sent anything yet."""
        self._driver = connection.connection.driver_connection
        if self.sessions.on_sqlite and self._turn is None:
            self._wait(self._take_turn())
        try:
            self.sessions.cleaner.begin(connection)
        except BaseException:
            self._loop.call_soon_threadsafe(self._give_turn)
            raise
        event.listen(connection, "commit", self._before_commit)
        event.listen(connection, "rollback", self._before_rollback)
        if self.sessions.on_sqlite:
            event.listen(connection, "before_cursor_execute", self._before_statement)
            self._loop.call_soon_threadsafe(self._start_limit)
        for name, listener in self._watched.items():
            event.listen(connection, name, listener)

    def _before_statement(self, *_: Any) -> None:
        """Also for what a handler sends through the session's connection, past the session."""
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
        if used_by_oncehook.get() is not self.session:  # the handler's own, or a flush that failed: no longer watched
            close_afterwards(connection)

    def _check_transaction(self) -> None:
        """SQLite tells after each statement whether a transaction is open; PostgreSQL is asked with the last one."""
        if self.sessions.on_sqlite and self._driver is not None:
            self._is_lost = self._is_lost or not self._driver.in_transaction
        if self._is_lost:
            raise TransactionClosed(ENDED_BY_HANDLER)

    # -- SQLite: one writer, and not for long ---------------------------------------------------------------------

    async def _take_turn(self) -> None:
        turn = self.sessions.store.database.handler_lock
        assert turn is not None
        await turn.acquire()
        if self._finished:  # it was given up while it waited
            turn.release()
            self.check_open()
        self._turn = turn

    def _give_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    def _start_limit(self) -> None:
        if self._turn is not None and not self._ended:
            self._limit = self._loop.call_later(sqlite_handler.MAX_HANDLER_SECONDS, self._expire)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()

    def _expire(self) -> None:
        self._cutting = self._loop.create_task(self._cut())

    async def _cut(self) -> None:
        """Take the write lock from the handler: its statement ends, its work is undone, no other is let through."""
        try:
            await self._take_back()
        finally:
            self._give_turn()

    @abstractmethod
    async def _take_back(self) -> None:
        """End the statement that SQLite is running, and roll back under the session, which is told by itself later."""

    def _check_limit(self) -> None:
        if self._cutting is not None:
            raise StoreUnavailable(sqlite_handler.lock_timeout_message(sqlite_handler.MAX_HANDLER_SECONDS))


def _undo(session: HandlerSession) -> None:
    try:
        session.rollback()
        session.close()
    except Exception:  # the connection is of no more use, whatever it is that it says
        session.invalidate()
