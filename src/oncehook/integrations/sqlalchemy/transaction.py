"""A handler's transaction on a SQLAlchemy session, as the worker, a rehearsal and the session use it."""

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection, event, text

from oncehook.integrations.sqlalchemy.cleaner import KEY, SettleFenced, close_afterwards
from oncehook.integrations.sqlalchemy.session import HandlerSession, used_by_oncehook
from oncehook.integrations.user_transaction import UserTransaction
from oncehook.model.lease import Settled
from oncehook.store.transaction import AFTER_HANDLER_ENDED, ENDED_BY_HANDLER, StatementSelector, TransactionClosed

if TYPE_CHECKING:
    from oncehook.integrations.sqlalchemy.engine import Sessions

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class SessionTransaction(UserTransaction):
    """A handler's transaction on a session. Its code is synchronous; a subclass runs it in a greenlet or a thread."""

    in_use: AbstractContextManager[Any]
    session: HandlerSession
    tx: Any

    def __init__(self, sessions: "Sessions") -> None:
        super().__init__(sessions.store)
        self.sessions = sessions
        self._driver: Any = None
        self._is_lost = False  # the handler ended the transaction, or SQLite did after an error
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
        await self._prepare_statement()
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

    async def _settle_and_commit(self, settled: Sequence[Settled]) -> bool:
        return await self._run(lambda session: self._settle(session, settled))

    def _settle(self, session: HandlerSession, settled: Sequence[Settled]) -> bool:
        session.flush()
        self._check_transaction()
        session.connection()  # begins the transaction if nothing was sent
        if self.on_sqlite:
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

    async def _roll_back(self) -> None:
        await self._run(_roll_back)

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
        if self.on_sqlite and self._write_lock is None:
            self._wait(self._acquire_write_lock())
        try:
            self.sessions.cleaner.begin(connection)
        except BaseException:
            self._loop.call_soon_threadsafe(self._release_write_lock)
            raise
        event.listen(connection, "commit", self._before_commit)
        event.listen(connection, "rollback", self._before_rollback)
        if self.on_sqlite:
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
        if self.on_sqlite and self._driver is not None:
            self._is_lost = self._is_lost or not self._driver.in_transaction
        if self._is_lost:
            raise TransactionClosed(ENDED_BY_HANDLER)


def _roll_back(session: HandlerSession) -> None:
    try:
        session.rollback()
        session.close()
    except Exception:  # the connection cannot be reused, whatever the error is
        session.invalidate()
