"""Connections of the user's pool, as handlers leave them: clean, or closed.

Neither another handler nor the app's own requests find what a handler left in a session, whatever statement left it.

On PostgreSQL the session is cleaned in the same message that writes the processed status, and in the one that rolls
back. SQLAlchemy still sends the last COMMIT or ROLLBACK, of an empty transaction that was chained to the handler's. The
app's own `connect` listeners may have made settings of their own: those that a connection has before its first handler
are set again afterwards. On SQLite, SQLite itself tells what each statement does. A connection that cannot be cleaned
is closed when it returns to the pool, which opens another one and runs the `connect` listeners for it.
"""

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import await_only

from oncehook.model.lease import Settled
from oncehook.observability import signals
from oncehook.store.postgres.finish import (
    LEASE_LOST,
    TRANSACTION_REPLACED,
    finish_statement,
    in_one_line,
    literal,
)
from oncehook.store.sqlite.file import BUSY_MS
from oncehook.store.sqlite.session import CREATE_SESSION_TABLE, RESET_ROWID, is_harmless
from oncehook.store.transaction import ENDED_BY_HANDLER, RESET_ALL_HINT, TransactionClosed

KEY = "oncehook"
_STATE = "oncehook.state"
_CLOSES = "oncehook.closes"

is_handlers: ContextVar[bool] = ContextVar("oncehook_is_handlers", default=False)
"""Whether a connection that is checked out now is a handler's."""


class LeaseLost(Exception):
    """The processed status was not written: another worker has the event."""


def close_afterwards(connection: Connection) -> None:
    """Let the pool close this connection instead of keeping it."""
    if not connection.closed and not connection.invalidated:
        connection.info[_CLOSES] = True


class Cleaner(ABC):
    """Keeps what a handler leaves in a connection from everybody who gets it next."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self.engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        event.listen(self.engine, "checkin", self._on_checkin)

    def _on_checkin(self, _connection: Any, record: Any) -> None:
        if record.info.pop(_CLOSES, False):
            record.info.pop(KEY, None)
            is_shared = isinstance(self.engine.pool, StaticPool) and not self.engine.dialect.is_async
            record.invalidate(soft=is_shared)  # another thread may be using it right now; garbage collection closes it

    @abstractmethod
    def begin(self, connection: Connection) -> None:
        """Begin the handler's transaction, in which nothing was sent yet."""

    @abstractmethod
    def before_commit(self, connection: Connection, settled: Sequence[Settled]) -> None:
        """Clean the session after all of the handler's work."""

    @abstractmethod
    def before_rollback(self, connection: Connection) -> None:
        """Clean the session of a handler that failed."""


# -- PostgreSQL -----------------------------------------------------------------------------------------------------


STATEMENTS = (
    "guard_transaction",
    "before_finish",
    "finish",
    "finish_others",
    "after_finish",
    "unlock_session",
    "unlock_prepared_session",
    "clean_session",
    "deallocate_statements",
    "session_state",
)


class SessionState(NamedTuple):
    """What a connection had before its first handler."""

    restore: str  # the statements that bring its settings back; empty: it had none
    is_whole: bool  # whether they bring back all of it


UNKNOWN = SessionState("", False)  # SQLAlchemy replaced a connection that was lost, past the handler's session


class PostgresCleaner(Cleaner):
    """One message, sent to the driver itself: SQLAlchemy's asyncpg dialect would prepare it, as one statement.

    Without fast paths, and where `check` has found that SQLAlchemy changed, the pool closes it after each handler.
    """

    def __init__(
        self, engine: Engine | AsyncEngine, sql: dict[str, str], *, cleans: bool, fast: Callable[[], bool]
    ) -> None:
        super().__init__(engine)
        self.cleans = cleans
        self.is_supported = True  # by the SQLAlchemy that is installed
        self._fast = fast
        self.is_asyncpg = self.engine.dialect.driver == "asyncpg"
        self._sql = {name: in_one_line(sql[name]) for name in STATEMENTS}
        guard = literal(self._sql["guard_transaction"])
        # psycopg sends DEALLOCATE ALL itself, and notices when somebody else does
        self._unlock = self._sql["unlock_prepared_session" if self.is_asyncpg else "unlock_session"].format(guard=guard)
        if cleans:
            event.listen(self.engine, "checkout", self._on_checkout)

    @property
    def keeps(self) -> bool:
        """Whether a connection is cleaned and stays in the pool."""
        return self.is_supported and self._fast()

    def check(self, connection: Connection) -> None:
        """Turn the fast path off if SQLAlchemy's asyncpg dialect does not have what it needs."""
        if not self.is_asyncpg or hasattr(connection.connection.dbapi_connection, "_prepared_statement_cache"):
            return
        self.is_supported = False
        detail = f"SQLAlchemy {sqlalchemy.__version__}: its asyncpg dialect has no cache of prepared statements"
        signals.emit("fast_path_off", path="SQLAlchemy connections", detail=detail)

    def _on_checkout(self, dbapi_connection: Any, record: Any, _proxy: Any) -> None:
        """Outside of a transaction, whose own settings (SET LOCAL) are not the session's."""
        if is_handlers.get() and _STATE not in record.info:
            record.info[_STATE] = self._read_state(dbapi_connection)

    def _read_state(self, dbapi_connection: Any) -> SessionState:
        cursor = dbapi_connection.cursor()
        try:
            cursor.execute(self._sql["session_state"])
            session_user, role, settings, has_more = cursor.fetchone()
        finally:
            cursor.close()
            dbapi_connection.rollback()
        values = json.loads(settings) | {
            name: value for name, value in (("session_authorization", session_user), ("role", role)) if value
        }
        calls = [f"pg_catalog.set_config({literal(name)}, {literal(value)}, false)" for name, value in values.items()]
        # in this order: a listener that changed the role may have made settings before, which the role cannot make
        restore = f"RESET SESSION AUTHORIZATION; RESET ROLE; SELECT {', '.join(calls)}" if calls else ""
        return SessionState(restore, not has_more)

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql(self._sql["guard_transaction"])

    def before_commit(self, connection: Connection, settled: Sequence[Settled]) -> None:
        try:
            self._send(connection, self._ending(connection, settled))
        except BaseException as error:
            close_afterwards(connection)  # how far it came is not known
            code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
            if code == LEASE_LOST:
                raise LeaseLost from error
            if code == TRANSACTION_REPLACED:
                raise TransactionClosed(f"{ENDED_BY_HANDLER} ({RESET_ALL_HINT})") from error
            raise

    def _ending(self, connection: Connection, settled: Sequence[Settled]) -> str:
        finish = finish_statement(self._sql, settled, resets=False, guarded=False if self.cleans else None)
        if not self.cleans:
            return finish
        restore = self._restore(connection)
        if not self.keeps:
            close_afterwards(connection)
            return "; ".join([self._sql["before_finish"], *restore, finish])
        message = [
            self._sql["before_finish"],
            *restore,
            finish,
            self._sql["after_finish"],
            *restore,
            "COMMIT AND CHAIN",
            self._unlock,
        ]
        return "; ".join(message)

    def before_rollback(self, connection: Connection) -> None:
        """The cleaning is committed: it must survive the ROLLBACK that SQLAlchemy is about to send."""
        if not self.cleans or connection.closed or connection.invalidated:
            return
        if not self.keeps:
            connection.invalidate()
            return
        deallocate = self._sql["deallocate_statements"].format(guarded=False)
        message = [
            "ROLLBACK AND CHAIN",
            self._sql["clean_session"],
            *self._restore(connection),
            deallocate,
            "COMMIT AND CHAIN",
            self._unlock,
        ]
        try:
            self._send(connection, "; ".join(message))
        except Exception:  # lost, or without a transaction: whatever it says, it is of no more use
            connection.invalidate()
        except BaseException:
            connection.invalidate()
            raise

    def _restore(self, connection: Connection) -> list[str]:
        state: SessionState = connection.info.get(_STATE, UNKNOWN)
        if not state.is_whole:
            close_afterwards(connection)
        return [state.restore] if state.restore else []

    def _send(self, connection: Connection, message: str) -> None:
        proxy = connection.connection
        if self.is_asyncpg:
            driver: Any = proxy.driver_connection
            last = await_only(driver.execute(message))
            caches = getattr(proxy.dbapi_connection, "_prepared_statement_cache", ()) is not None
            if last == "SELECT 0" and caches:
                close_afterwards(connection)  # the driver's prepared statements are gone
        else:
            cursor = proxy.cursor()
            try:
                cursor.execute(message)
            finally:
                cursor.close()


# -- SQLite ---------------------------------------------------------------------------------------------------------


class SqliteCleaner(Cleaner):
    """Watches what statements do while a handler has the connection."""

    def begin(self, connection: Connection) -> None:
        """The write lock at once: a transaction that first reads could not get it later without starting anew."""
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:  # begun by a listener of the user's own, or by the driver (autocommit=False)
            connection.exec_driver_sql("ROLLBACK")
        if KEY not in connection.info:
            connection.exec_driver_sql("PRAGMA synchronous = FULL")
            connection.exec_driver_sql("PRAGMA wal_autocheckpoint = 0")  # only the store's writer checkpoints
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_MS}")
            connection.exec_driver_sql(CREATE_SESSION_TABLE)
            connection.info[KEY] = Watch(connection.info)
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        watch: Watch = connection.info[KEY]
        _in_its_thread(driver, watch.start)

    def before_commit(self, connection: Connection, settled: Sequence[Settled]) -> None:
        self._stop(connection)

    def before_rollback(self, connection: Connection) -> None:
        if connection.closed or connection.invalidated:
            return
        try:
            self._stop(connection)
        except Exception:  # read-only, locked, or closed by now
            close_afterwards(connection)

    def _stop(self, connection: Connection) -> None:
        watch: Watch = connection.info[KEY]
        _in_its_thread(connection.connection.driver_connection, watch.stop)


class Watch:
    """The authorizer of a connection: what SQLite tells when it compiles a statement, which it does once.

    A handler may send a statement that the app has sent before. So where the app's own was not harmless, the authorizer
    is set again for the next handler: that makes SQLite compile everything again, which takes 0.4 ms for each handler.
    """

    def __init__(self, info: MutableMapping[Any, Any]) -> None:
        self._info = info
        self._user = "app"
        self._is_stale = True

    def start(self, raw: sqlite3.Connection) -> None:
        self._user = "handler"
        if self._is_stale:
            self._is_stale = False
            raw.set_authorizer(self._note)

    def stop(self, raw: sqlite3.Connection) -> None:
        self._user = "oncehook"
        raw.execute(RESET_ROWID)
        self._user = "app"

    def _note(self, action: int, _name: Any, _detail: Any, database: str | None, _within: Any) -> int:
        if not is_harmless(action, database):
            if self._user == "handler":
                self._info[_CLOSES] = True
            elif self._user == "app":
                self._is_stale = True
        return sqlite3.SQLITE_OK


def _in_its_thread(driver: Any, work: Callable[[sqlite3.Connection], None]) -> None:
    """Do `work` with Python's own connection, which aiosqlite keeps in a thread."""
    if isinstance(driver, sqlite3.Connection):
        work(driver)
    else:
        await_only(driver._execute(lambda: work(driver._conn)))
