"""The Django connections of handlers: opens, checks, settles, cleans and closes them."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from typing import Any

import msgspec
from django.db import Error, connections

from oncehook.handlers.registry import Handlers
from oncehook.integrations.django.transaction import DjangoTransaction
from oncehook.integrations.session_state import UNKNOWN, SessionState, state_of
from oncehook.integrations.user_transaction import SETTLING_THREADS, STATEMENT_THREADS
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.model.lease import Settled
from oncehook.store import queries
from oncehook.store.postgres.finish import LEASE_LOST, TRANSACTION_REPLACED, finish_statement, in_one_line
from oncehook.store.sqlite.file import BUSY_MS
from oncehook.store.store import Store
from oncehook.store.transaction import ENDED_BY_HANDLER, RESET_ALL_HINT, TransactionClosed

_encode = msgspec.json.Encoder().encode

_STATE = "oncehook_state"
MAX_FREE = 64
"""How many connections without a handler are kept for the next ones."""


class Sessions:
    """Opens handlers' transactions on Django connections of one alias, which must be on the database of the inbox."""

    migrate_command = "manage.py migrate"

    def __init__(self, alias: str, store: Store) -> None:
        self.alias = alias
        self.store = store
        self.on_sqlite = store.dialect.single_writer
        self.threads = ThreadPoolExecutor(SETTLING_THREADS, thread_name_prefix="oncehook-django")
        self.statement_threads = ThreadPoolExecutor(STATEMENT_THREADS, thread_name_prefix="oncehook-django-statement")
        self._free: list[Any] = []
        self._process = os.getpid()

    def transaction(self) -> DjangoTransaction:
        """Return a handler's transaction, which begins at its first use."""
        return DjangoTransaction(self)

    def with_store(self, store: Store) -> "Sessions":
        """Return a copy that uses another store of the same database, such as the store of one operation."""
        other = copy(self)
        other.store, other._free = store, []
        return other

    async def dispose(self) -> None:
        """Close the connections that no handler uses."""

        def close() -> None:
            while self._free:
                self._free.pop().close()

        await asyncio.to_thread(close)

    # -- connections ----------------------------------------------------------------------------------------------

    def check_out(self) -> Any:
        """Return a connection that no other handler uses. It may not be connected yet."""
        if self._process != os.getpid():  # the connections belong to the process before the fork
            self._process, self._free = os.getpid(), []
        try:
            return self._free.pop()
        except IndexError:
            wrapper = connections.create_connection(self.alias)
            wrapper.inc_thread_sharing()
            return wrapper

    def check_in(self, wrapper: Any) -> None:
        """Keep a connection for the next handler, as long as CONN_MAX_AGE says. On SQLite, a new one is as cheap."""
        wrapper.queries_log.clear()
        if self.on_sqlite:
            wrapper.close()
        else:
            wrapper.close_if_unusable_or_obsolete()
            if wrapper.connection is not None and self.store.settings.clean_sessions:
                self._clean(wrapper)
        if len(self._free) < MAX_FREE:
            self._free.append(wrapper)
        else:
            wrapper.close()

    def discard(self, wrapper: Any) -> None:
        """Close a connection that is not used again."""
        with suppress(Exception):
            wrapper.close()

    def _clean(self, wrapper: Any) -> None:
        """Remove the state that a handler left in a PostgreSQL session."""
        state: SessionState = getattr(wrapper, _STATE, (None, UNKNOWN))[1]
        sql = self.store.sql
        message = [sql["clean_session"], *([state.restore] if state.restore else []), sql["unlock_session"]]
        try:
            if not state.is_whole:
                raise Error("the session had state that cannot be restored")
            with wrapper.wrap_database_errors, wrapper.connection.cursor() as cursor:
                cursor.execute("; ".join(map(in_one_line, message)))
                cursor.execute(in_one_line(sql["deallocate_statements"].format(guarded=False)))
        except Error:
            wrapper.close()

    # -- statements -----------------------------------------------------------------------------------------------

    def begin(self, wrapper: Any) -> None:
        """Begin the transaction of a handler, whose first statement follows."""
        if self.on_sqlite:
            driver = wrapper.connection
            if driver.in_transaction:
                driver.rollback()
            driver.execute("PRAGMA synchronous = FULL")
            driver.execute("PRAGMA wal_autocheckpoint = 0")  # only the store's writer checkpoints
            driver.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            driver.execute("BEGIN IMMEDIATE")  # SQLite cannot give the lock later to a transaction that has read
            return
        self._remember_state(wrapper)
        with wrapper.connection.cursor() as cursor:
            cursor.execute(in_one_line(self.store.sql["guard_transaction"]))

    def _remember_state(self, wrapper: Any) -> None:
        """Read the state of a new session, to restore it after each handler."""
        connected, _ = getattr(wrapper, _STATE, (None, UNKNOWN))
        if connected is wrapper.connection or not self.store.settings.clean_sessions:
            return
        with wrapper.connection.cursor() as cursor:
            cursor.execute(in_one_line(self.store.sql["session_state"]))
            setattr(wrapper, _STATE, (wrapper.connection, state_of(cursor.fetchone())))

    def query(self, wrapper: Any, statement: str, parameters: str) -> list[Any]:
        """Run one of the store's statements, and return its rows."""
        if self.on_sqlite:
            rows: list[Any] = wrapper.connection.execute(statement, {"input": parameters}).fetchall()
            return rows
        with wrapper.connection.cursor() as cursor:
            cursor.execute(queries.format_parameters(statement), {"input": parameters})
            return [] if cursor.description is None else list(cursor.fetchall())

    def settle(self, wrapper: Any, settled: Sequence[Settled]) -> bool:
        """Settle the events as the last statement before the COMMIT. Returns False if a lease was lost."""
        if self.on_sqlite:
            with wrapper.wrap_database_errors:
                landed = self.query(wrapper, self.store.sql["settle"], _encode(settled).decode())
            return len(landed) == len(settled)
        try:
            with wrapper.wrap_database_errors, wrapper.connection.cursor() as cursor:
                cursor.execute(self._finish(wrapper, settled))
        except Error as error:
            code = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
            if code == LEASE_LOST:
                return False
            if code == TRANSACTION_REPLACED:
                raise TransactionClosed(f"{ENDED_BY_HANDLER} ({RESET_ALL_HINT})") from error
            raise
        return True

    def _finish(self, wrapper: Any, settled: Sequence[Settled]) -> str:
        cleans = self.store.settings.clean_sessions
        sql = {name: in_one_line(text) for name, text in self.store.sql.items() if "finish" in name}
        finish = finish_statement(sql, settled, resets=False, guarded=False if cleans else None)
        state: SessionState = getattr(wrapper, _STATE, (None, UNKNOWN))[1]
        restore = [state.restore] if state.restore else []
        return "; ".join([sql["before_finish"], *restore, finish]) if cleans else finish

    # -- checks at start ------------------------------------------------------------------------------------------

    def check_handlers(self, handlers: Handlers) -> None:
        """Every handler can run: an `async def` runs in a thread too."""

    async def check_database(self) -> None:
        """Raise ConfigurationError if the alias is not on the inbox's database. The store must be open."""
        try:
            row = await asyncio.to_thread(self._identify)
        except Error as error:
            raise StoreUnavailable(f"Django's database {self.alias!r} cannot be reached: {error}") from error
        if self.on_sqlite:
            ours = self.store.dialect.file(self.store.settings.database)
            assert ours is not None
            if not row[0] or not await asyncio.to_thread(os.path.samefile, row[0], ours):
                raise ConfigurationError(self._differs(row[0] or "a database in memory", str(ours.absolute())))
            return
        [own] = await self.store.database.executor.read("same_database")
        if tuple(own[:3]) != tuple(row[:3]):
            raise ConfigurationError(self._differs(str(row[0]), str(own[0])))

    def _identify(self) -> Any:
        wrapper = self.check_out()
        try:
            with wrapper.cursor() as cursor:
                cursor.execute(in_one_line(self.store.sql["same_database"]))
                return cursor.fetchone()
        finally:
            wrapper.close()

    def _differs(self, theirs: str, ours: str) -> str:
        return (
            f"Django's database {self.alias!r} is {theirs}, and the inbox uses {ours}: a handler's work and the "
            f"processed status must commit in one database and schema; check DATABASES[{self.alias!r}]"
        )
