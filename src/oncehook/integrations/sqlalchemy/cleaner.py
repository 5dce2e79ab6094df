"""Cleans the connections of the user's pool after each handler, or closes them.

A handler may leave state in a database session, such as settings or temporary tables. Neither the next handler nor the
app's own requests may see that state.

On PostgreSQL the session is cleaned in the same message that writes the processed status, or that rolls back.
SQLAlchemy still sends the last COMMIT or ROLLBACK, for an empty transaction that is chained to the handler's. The app's
`connect` listeners may change settings of a connection. The cleaner reads these settings before the first handler, and
restores them after each one. On SQLite, an authorizer reports what each statement does. A connection that cannot be
cleaned is closed when it returns to the pool. The pool then opens a new one and runs the `connect` listeners.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import await_only

from oncehook.integrations.session_state import UNKNOWN, SessionState, state_of
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

in_handler: ContextVar[bool] = ContextVar("oncehook_in_handler", default=False)
"""Whether a connection that is checked out in this context is for a handler."""


class SettleFenced(Exception):
    """The processed status was not written: the lease is lost, and another worker has the event."""


def close_afterwards(connection: Connection) -> None:
    """Make the pool close this connection when it returns, instead of reusing it."""
    if not connection.closed and not connection.invalidated:
        connection.info[_CLOSES] = True


class Cleaner(ABC):
    """Removes the session state that a handler leaves in a connection."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self.engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        event.listen(self.engine, "checkin", self._on_checkin)

    def _on_checkin(self, _connection: Any, record: Any) -> None:
        if record.info.pop(_CLOSES, False):
            record.info.pop(KEY, None)
            is_shared = isinstance(self.engine.pool, StaticPool) and not self.engine.dialect.is_async
            record.invalidate(soft=is_shared)  # another thread may be using it; garbage collection closes it

    @abstractmethod
    def begin(self, connection: Connection) -> None:
        """Begin the handler's transaction, before its first statement."""

    @abstractmethod
    def before_commit(self, connection: Connection, settled: Sequence[Settled]) -> None:
        """Clean the session after the last statement of the handler."""

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


class PostgresCleaner(Cleaner):
    """Cleans a session with one message, which it sends directly to the driver.

    SQLAlchemy's asyncpg dialect would prepare the message as a single statement. Without fast paths, or if `check`
    finds an unsupported SQLAlchemy, the pool closes the connection after each handler instead.
    """

    def __init__(
        self, engine: Engine | AsyncEngine, sql: dict[str, str], *, cleans: bool, fast: Callable[[], bool]
    ) -> None:
        super().__init__(engine)
        self.cleans = cleans
        self.is_supported = True  # whether the installed SQLAlchemy supports cleaning
        self._fast = fast
        self.is_asyncpg = self.engine.dialect.driver == "asyncpg"
        self._sql = {name: in_one_line(sql[name]) for name in STATEMENTS}
        guard = literal(self._sql["guard_transaction"])
        # psycopg sends DEALLOCATE ALL itself, and detects one that another sender sends
        self._unlock = self._sql["unlock_prepared_session" if self.is_asyncpg else "unlock_session"].format(guard=guard)
        if cleans:
            event.listen(self.engine, "checkout", self._on_checkout)

    @property
    def keeps(self) -> bool:
        """Whether a connection is cleaned and reused, instead of being closed."""
        return self.is_supported and self._fast()

    def check(self, connection: Connection) -> None:
        """Turn the fast path off if SQLAlchemy's asyncpg dialect has no cache of prepared statements."""
        if not self.is_asyncpg or hasattr(connection.connection.dbapi_connection, "_prepared_statement_cache"):
            return
        self.is_supported = False
        detail = f"SQLAlchemy {sqlalchemy.__version__}: its asyncpg dialect has no cache of prepared statements"
        signals.emit("fast_path_off", path="SQLAlchemy connections", detail=detail)

    def _on_checkout(self, dbapi_connection: Any, record: Any, _proxy: Any) -> None:
        """Read the session state outside of a transaction, so that SET LOCAL settings are not part of it."""
        if in_handler.get() and _STATE not in record.info:
            record.info[_STATE] = self._read_state(dbapi_connection)

    def _read_state(self, dbapi_connection: Any) -> SessionState:
        cursor = dbapi_connection.cursor()
        try:
            cursor.execute(self._sql["session_state"])
            row = cursor.fetchone()
        finally:
            cursor.close()
            dbapi_connection.rollback()
        return state_of(row)

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql(self._sql["guard_transaction"])

    def before_commit(self, connection: Connection, settled: Sequence[Settled]) -> None:
        try:
            self._send(connection, self._ending(connection, settled))
        except BaseException as error:
            close_afterwards(connection)  # it is not known which statements ran
            code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
            if code == LEASE_LOST:
                raise SettleFenced from error
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
        """Roll back, clean and commit the cleaning, so that it survives the ROLLBACK that SQLAlchemy sends next."""
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
        except Exception:  # lost, or without a transaction: the connection cannot be reused
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
                close_afterwards(connection)  # the driver's prepared statements were deallocated
        else:
            cursor = proxy.cursor()
            try:
                cursor.execute(message)
            finally:
                cursor.close()


# -- SQLite ---------------------------------------------------------------------------------------------------------


class SqliteCleaner(Cleaner):
    """Detects statements that change session state while a handler uses the connection."""

    def begin(self, connection: Connection) -> None:
        """Begin with the write lock: SQLite cannot give it later to a transaction that has already read."""
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:  # begun by a listener of the user, or by the driver (autocommit=False)
            connection.exec_driver_sql("ROLLBACK")
        if KEY not in connection.info:
            connection.exec_driver_sql("PRAGMA synchronous = FULL")
            connection.exec_driver_sql("PRAGMA wal_autocheckpoint = 0")  # only the store's writer checkpoints
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_MS}")
            connection.exec_driver_sql(CREATE_SESSION_TABLE)
            connection.info[KEY] = StatementAuthorizer(connection.info)
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        authorizer: StatementAuthorizer = connection.info[KEY]
        _run_in_driver_thread(driver, authorizer.start)

    def before_commit(self, connection: Connection, settled: Sequence[Settled]) -> None:
        self._stop(connection)

    def before_rollback(self, connection: Connection) -> None:
        if connection.closed or connection.invalidated:
            return
        try:
            self._stop(connection)
        except Exception:  # read-only, locked or already closed
            close_afterwards(connection)

    def _stop(self, connection: Connection) -> None:
        authorizer: StatementAuthorizer = connection.info[KEY]
        _run_in_driver_thread(connection.connection.driver_connection, authorizer.stop)


class StatementAuthorizer:
    """The authorizer of a connection, which SQLite calls when it compiles a statement, but not when it runs it again.

    A handler may send a statement that the app has sent before. So after a statement of the app that changes session
    state, the authorizer is set again for the next handler. SQLite then compiles every statement again, which takes
    0.4 ms per handler.
    """

    def __init__(self, info: MutableMapping[Any, Any]) -> None:
        self._info = info
        self._user = "app"
        self._is_stale = True

    def start(self, raw: sqlite3.Connection) -> None:
        self._user = "handler"
        if self._is_stale:
            self._is_stale = False
            raw.set_authorizer(self._authorize)

    def stop(self, raw: sqlite3.Connection) -> None:
        self._user = "oncehook"
        raw.execute(RESET_ROWID)
        self._user = "app"

    def _authorize(self, action: int, _name: Any, _detail: Any, database: str | None, _within: Any) -> int:
        if not is_harmless(action, database):
            if self._user == "handler":
                self._info[_CLOSES] = True
            elif self._user == "app":
                self._is_stale = True
        return sqlite3.SQLITE_OK


def _run_in_driver_thread(driver: Any, work: Callable[[sqlite3.Connection], None]) -> None:
    """Run `work` with the sqlite3 connection, for aiosqlite in the thread that owns it."""
    if isinstance(driver, sqlite3.Connection):
        work(driver)
    else:
        await_only(driver._execute(lambda: work(driver._conn)))
