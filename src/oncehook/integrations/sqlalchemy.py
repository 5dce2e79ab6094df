"""SQLAlchemy: a handler's `tx` is a session on the user's own engine, and the mark commits with its ORM work.

An `AsyncEngine` gives an `AsyncSession` to `async def` handlers, an `Engine` gives a `Session` to plain ones, which run
in a thread. Nothing is held before the session's first use. The end of the transaction is ours: a handler that calls
`commit` or `rollback` is told so, `begin_nested` is its savepoint. The engine itself is left as it is.

On SQLite the driver emits no BEGIN before a SAVEPOINT, so a RELEASE would commit, and the row survive the outer
rollback. So these sessions emit `BEGIN IMMEDIATE` themselves, take turns with each other, and hold the write lock only
so long.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from oncehook.handlers.registry import Handlers
from oncehook.integrations.sqlalchemy_session import (
    KEY,
    Cleaner,
    LeaseLost,
    PostgresCleaner,
    SqliteCleaner,
    close_afterwards,
    is_handlers,
)
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.model.receipt import Settled
from oncehook.store.sqlite import work as sqlite_work
from oncehook.store.transaction import ENDED, NOT_YOURS, Pick, TransactionClosed

T = TypeVar("T")

DIALECTS = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
SETTLING_THREADS = 16
"""Apart from those that handlers run in: those may all be waiting for the one that is to be settled."""

ASKING_THREADS = 64
"""For effects and entities that handlers ask for, which may wait for a connection; apart from those above."""

PATIENCE = 10.0
"""How long a thread that was cut off may take to leave the statement that it is in."""

_ours: ContextVar[Any] = ContextVar("oncehook_session", default=None)
_encode = msgspec.json.Encoder().encode


# -- the engine -----------------------------------------------------------------------------------------------------


class Sessions:
    """Handlers' transactions out of a user's engine, which must be on the inbox's own database."""

    def __init__(self, engine: Engine | AsyncEngine, store: Any) -> None:
        if not isinstance(engine, (Engine, AsyncEngine)):
            raise ConfigurationError(
                f"engine is a {type(engine).__name__}: give what create_engine or create_async_engine returned"
            )
        self.engine = engine
        self.store = store
        self.is_async = isinstance(engine, AsyncEngine)
        self.on_sqlite = engine.dialect.name == "sqlite"
        self._check_dialect()
        self.cleaner = self._make_cleaner()
        self.threads = ThreadPoolExecutor(SETTLING_THREADS, thread_name_prefix="oncehook-session")
        self.asking = ThreadPoolExecutor(ASKING_THREADS, thread_name_prefix="oncehook-session-asks")
        if isinstance(engine, AsyncEngine) and self.on_sqlite:
            event.listen(engine.sync_engine, "invalidate", _before_closing)

    def transaction(self) -> "SessionTransaction":
        """A handler's transaction, not begun yet."""
        return AsyncTransaction(self) if self.is_async else SyncTransaction(self)

    def _make_cleaner(self) -> Cleaner:
        if self.on_sqlite:
            return SqliteCleaner(self.engine)
        return PostgresCleaner(self.engine, self.store.sql, cleans=self.store.settings.clean_sessions)

    async def dispose(self) -> None:
        """Close the engine's connections, where the process is ours and ends."""
        if isinstance(self.engine, AsyncEngine):
            await self.engine.dispose()
        else:
            self.engine.dispose()
        self.threads.shutdown()

    def _check_dialect(self) -> None:
        name = self.engine.dialect.name
        inbox = "sqlite" if hasattr(self.store, "path") else "postgresql"
        if name != inbox:
            raise ConfigurationError(
                f"engine is for {DIALECTS.get(name, name)} and the inbox is on {DIALECTS[inbox]}: a handler's work and "
                f"its mark can only commit together in one database; give both the same"
            )

    async def check_database(self) -> None:
        """Refuse an engine that is not on the inbox's database. The store is open by then."""
        try:
            first, second = await self._ask_twice(self.store.sql["same_database"])
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"the engine's database cannot be reached: {type(error).__name__}") from error
        if self.on_sqlite:
            self._check_file(first[0])
        else:
            await self._check_server(first)
            if first != second:
                raise ConfigurationError(
                    "engine has isolation_level AUTOCOMMIT: each statement of a handler would commit by itself, "
                    "without the mark; leave it out, or set it only where your app needs it"
                )

    def check_handlers(self, handlers: Handlers) -> None:
        """Refuse handlers that this engine cannot serve."""
        for handler in handlers:
            if handler.takes_tx:
                self.check_kind(handler.name, is_async=handler.is_async)

    def check_kind(self, name: str, *, is_async: bool) -> None:
        if is_async and not self.is_async:
            raise ConfigurationError(
                f"{name} is an `async def`, and the inbox was given a synchronous engine: "
                f"make it a plain `def`, or give the inbox a create_async_engine(…)"
            )
        if self.is_async and not is_async:
            raise ConfigurationError(
                f"{name} is a plain `def`, and the inbox was given an asynchronous engine: "
                f"make it an `async def`, or give the inbox a create_engine(…)"
            )

    async def _ask_twice(self, statement: str) -> list[Any]:
        """The row of a statement, asked twice in what should be one transaction."""

        def ask(connection: Connection) -> list[Any]:
            return [tuple(connection.execute(text(statement)).one()) for _ in range(2)]

        def ask_in_thread(engine: Engine) -> list[Any]:
            with engine.connect() as connection:
                return ask(connection)

        if isinstance(self.engine, Engine):
            return await asyncio.to_thread(ask_in_thread, self.engine)
        async with self.engine.connect() as connection:
            return await connection.run_sync(ask)

    def _check_file(self, file: str) -> None:
        ours: Path = self.store.path
        if not file or not Path(file).samefile(ours):
            raise ConfigurationError(
                f"engine opens {file or 'a database in memory'} and the inbox {ours.absolute()}: a handler's work and "
                f"its mark can only commit together in one file; give both the same"
            )

    async def _check_server(self, theirs: tuple[Any, ...]) -> None:
        """Not by address: a socket, an alias and a PgBouncer lead to the same database under different names."""
        [ours] = await self.store.read(self.store.sql["same_database"], {})
        if tuple(ours[:2]) != theirs[:2]:
            raise ConfigurationError(
                f"engine is on another PostgreSQL database ({theirs[0]}) than the inbox ({ours[0]}), or on another "
                f"server: a handler's work and its mark can only commit together in one; give both the same"
            )
        if ours[2] != theirs[2]:
            raise ConfigurationError(
                "engine is on the inbox's database, but does not see its tables: give both the same search_path"
            )


# -- the session ----------------------------------------------------------------------------------------------------


class HandlerSession(Session):
    """What a handler gets, or what its AsyncSession stands on. It is dead once its handler has ended."""

    def begin(self, nested: bool = False) -> Any:
        if not nested:
            self._refuse("begin")
        return super().begin(nested=nested)

    def _refuse(self, name: str) -> None:
        if _ours.get() is not self:
            raise TransactionClosed(
                f"tx.{name}() is not the handler's to call: its work commits with the mark when it returns, and is "
                f"rolled back when it raises; use begin_nested() around what may fail"
            )


USES = (
    "add", "add_all", "begin_nested", "bulk_insert_mappings", "bulk_save_objects", "bulk_update_mappings", "connection",
    "delete", "delete_all", "execute", "flush", "get", "get_one", "merge", "merge_all", "query", "refresh", "scalar",
    "scalars",
)  # fmt: skip
ENDS = ("close", "commit", "invalidate", "prepare", "reset", "rollback")


def _guarded(name: str) -> Callable[..., Any]:
    """A verb of the session that counts only while the handler runs."""
    inherited = getattr(Session, name)

    @wraps(inherited)
    def guarded(self: HandlerSession, *args: Any, **named: Any) -> Any:
        transaction: SessionTransaction = self.info[KEY]
        with transaction.in_use:
            transaction.check_open()
            token = is_handlers.set(True)
            try:
                return inherited(self, *args, **named)
            finally:
                is_handlers.reset(token)

    return guarded


def _kept(name: str) -> Callable[..., Any]:
    """A verb that ends the transaction: only ours."""
    inherited = getattr(Session, name)

    @wraps(inherited)
    def kept(self: HandlerSession, *args: Any, **named: Any) -> Any:
        self._refuse(name)
        return inherited(self, *args, **named)

    return kept


for _names, _wrap in ((USES, _guarded), (ENDS, _kept)):
    for _name in _names:
        if hasattr(Session, _name):  # some came with later versions of SQLAlchemy
            setattr(HandlerSession, _name, _wrap(_name))


@event.listens_for(HandlerSession, "after_begin")
def _after_begin(session: HandlerSession, transaction: Any, connection: Connection) -> None:
    if not transaction.nested:
        session.info[KEY].begun(connection)


# -- the transaction ------------------------------------------------------------------------------------------------


class SessionTransaction(ABC):
    """A handler's transaction on a session. What is done here is written once, and run in a greenlet or a thread."""

    in_use: AbstractContextManager[Any]
    session: HandlerSession
    tx: Any

    def __init__(self, sessions: Sessions) -> None:
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

    async def ask(self, pick: Pick, given: str) -> list[Any]:
        self._check_limit()
        if self._finished:
            raise TransactionClosed(ENDED)
        if self.sessions.on_sqlite and self._turn is None:
            await self._take_turn()
        statement = text(pick(self.sessions.store.sql)).execution_options(**{KEY: "ours"})
        return await self._ask(lambda session: [tuple(row) for row in session.execute(statement, {"given": given})])

    async def _ask(self, work: Callable[[HandlerSession], T]) -> T:
        return await self._run(work)

    def offer(self, *, is_async: bool) -> Any:
        """What the handler gets as `tx`."""
        self.sessions.check_kind("the handler", is_async=is_async)
        return self.tx

    def withdraw(self) -> None:
        """The handler has ended: what it got is dead."""
        self._ended = True

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """The marks after all of the handler's work, and the COMMIT of both. Whatever it raises, all is rolled back."""
        self.withdraw()
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
                text(self.sessions.store.sql["settle"]), {"given": _encode(settled).decode()}
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
        self.withdraw()
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
        if _ours.get() is self.session:
            return
        if self._ended:
            raise TransactionClosed(ENDED)
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
        if _ours.get() is self.session:
            self.sessions.cleaner.before_commit(connection, self._settled)
        else:
            self._is_lost = True
            close_afterwards(connection)
            raise TransactionClosed(NOT_YOURS)

    def _before_rollback(self, connection: Connection) -> None:
        self.sessions.cleaner.before_rollback(connection)
        if _ours.get() is not self.session:  # the handler's own, or a flush that failed: no longer watched
            close_afterwards(connection)

    def _check_transaction(self) -> None:
        """SQLite tells after each statement whether a transaction is open; PostgreSQL is asked with the last one."""
        if self.sessions.on_sqlite and self._driver is not None:
            self._is_lost = self._is_lost or not self._driver.in_transaction
        if self._is_lost:
            raise TransactionClosed(NOT_YOURS)

    # -- SQLite: one writer, and not for long ---------------------------------------------------------------------

    async def _take_turn(self) -> None:
        turn: asyncio.Lock = self.sessions.store.handling.turn
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
            self._limit = self._loop.call_later(sqlite_work.MOST_SECONDS, self._expire)

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
            raise StoreUnavailable(sqlite_work.held_too_long(sqlite_work.MOST_SECONDS))


class AsyncTransaction(SessionTransaction):
    """An `AsyncSession` for an `async def` handler."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions)
        self.in_use = nullcontext()
        self.tx = AsyncSession(sessions.engine, sync_session_class=HandlerSession, info={KEY: self})  # type: ignore[arg-type]
        self.session = self.tx.sync_session

    async def _run(self, work: Callable[[HandlerSession], T]) -> T:
        token = _ours.set(self.session)
        try:
            done: T = await self.tx.run_sync(work)
            return done
        finally:
            _ours.reset(token)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        done: T = await_only(coroutine)
        return done

    async def _take_back(self) -> None:
        await _stop_and_undo(self._driver)


class SyncTransaction(SessionTransaction):
    """A `Session` for a plain `def` handler, which runs in a thread."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions)
        self._lock = threading.RLock()
        self.in_use = self._lock
        self.tx = self.session = HandlerSession(sessions.engine, info={KEY: self})  # type: ignore[arg-type]
        self._waiting: Future[Any] | None = None

    async def _run(self, work: Callable[[HandlerSession], T]) -> T:
        if self._waiting is not None and self._ended:
            self._waiting.cancel()
        return await asyncio.shield(self._loop.run_in_executor(self.sessions.threads, self._alone, work))

    async def _ask(self, work: Callable[[HandlerSession], T]) -> T:
        return await asyncio.shield(self._loop.run_in_executor(self.sessions.asking, self._in_turn, work))

    def _in_turn(self, work: Callable[[HandlerSession], T]) -> T:
        token = _ours.set(self.session)
        try:
            with self._lock:
                return work(self.session)
        finally:
            _ours.reset(token)

    def _alone(self, work: Callable[[HandlerSession], T]) -> T:
        """A handler's thread cannot be stopped: it may still be in a statement when its time is up."""
        for _ in range(int(PATIENCE / 0.1)):
            if self._lock.acquire(timeout=0.1):
                break
            self._interrupt()
        else:
            raise StoreUnavailable("the handler's thread does not leave its statement")
        token = _ours.set(self.session)
        try:
            return work(self.session)
        finally:
            _ours.reset(token)
            self._lock.release()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if asyncio._get_running_loop() is self._loop:  # it would wait for itself, and everything with it
            coroutine.close()
            raise ConfigurationError(
                "a synchronous session was used in the event loop: let the handler be a plain `def` that gives nothing "
                "to await, or give the inbox a create_async_engine(…)"
            )
        self._waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        done: T = self._waiting.result()
        return done

    async def _take_back(self) -> None:
        self._interrupt()
        await self._run(lambda session: self._driver.rollback())

    def _interrupt(self) -> None:
        stop = getattr(self._driver, "interrupt", None) or getattr(self._driver, "cancel", None)  # sqlite3, psycopg
        if stop is not None:
            stop()


async def _stop_and_undo(driver: Any) -> None:
    """For aiosqlite: end what its thread is doing, and roll back."""
    try:
        await driver.interrupt()
        await asyncio.wait_for(driver.rollback(), 1)
    except (TimeoutError, ValueError):
        pass  # it is being closed, which is as good, and then it never answers


def _before_closing(dbapi_connection: Any, record: Any, error: Any) -> None:
    """A cancelled statement's connection is closed, but only after it has ended, and it keeps the lock even then.

    SQLite closes nothing under an unfinished cursor, and the error that is on its way holds one.
    """
    if KEY in record.info:
        await_only(_stop_and_undo(record.driver_connection))


def _undo(session: HandlerSession) -> None:
    try:
        session.rollback()
        session.close()
    except Exception:  # the connection is of no more use, whatever it is that it says
        session.invalidate()
