"""The user's engine: checks it at start, and opens the transactions of handlers on it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from oncehook.handlers.registry import Handlers
from oncehook.integrations.sqlalchemy.async_transaction import AsyncTransaction, interrupt_and_roll_back
from oncehook.integrations.sqlalchemy.cleaner import KEY, Cleaner, PostgresCleaner, SqliteCleaner
from oncehook.integrations.sqlalchemy.sync_transaction import SyncTransaction
from oncehook.integrations.sqlalchemy.transaction import SessionTransaction
from oncehook.integrations.user_transaction import SETTLING_THREADS, STATEMENT_THREADS
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store.store import Store

DIALECTS = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


class Sessions:
    """Opens handlers' transactions on the user's engine, which must be on the database of the inbox."""

    def __init__(self, engine: Engine | AsyncEngine, store: Store) -> None:
        if not isinstance(engine, (Engine, AsyncEngine)):
            raise ConfigurationError(
                f"engine is a {type(engine).__name__}: pass the result of create_engine or create_async_engine"
            )
        self.engine = engine
        self.store = store
        self.is_async = isinstance(engine, AsyncEngine)
        self.on_sqlite = engine.dialect.name == "sqlite"
        self._check_dialect()
        self.cleaner = self._make_cleaner()
        self.threads = ThreadPoolExecutor(SETTLING_THREADS, thread_name_prefix="oncehook-session")
        self.statement_threads = ThreadPoolExecutor(STATEMENT_THREADS, thread_name_prefix="oncehook-session-statement")
        if isinstance(engine, AsyncEngine) and self.on_sqlite:
            event.listen(engine.sync_engine, "invalidate", _before_closing)

    def transaction(self) -> SessionTransaction:
        """Return a handler's transaction, which begins at its first use."""
        return AsyncTransaction(self) if self.is_async else SyncTransaction(self)

    def with_store(self, store: Store) -> "Sessions":
        """Return a copy that uses another store of the same database, such as the store of one operation."""
        other = copy(self)
        other.store = store
        return other

    def _make_cleaner(self) -> Cleaner:
        if self.on_sqlite:
            return SqliteCleaner(self.engine)
        store = self.store
        cleans = store.settings.clean_sessions
        return PostgresCleaner(self.engine, store.sql, cleans=cleans, fast=lambda: store.settings.fast_paths)

    async def dispose(self) -> None:
        """Close the engine's connections. Only for Oncehook's own processes: an app continues to use them."""
        if isinstance(self.engine, AsyncEngine):
            await self.engine.dispose()
        else:
            self.engine.dispose()

    def _check_dialect(self) -> None:
        name = self.engine.dialect.name
        inbox = "sqlite" if self.store.dialect.name == "sqlite" else "postgresql"
        if name != inbox:
            raise ConfigurationError(
                f"engine is for {DIALECTS.get(name, name)} and the inbox is on {DIALECTS[inbox]}: a handler's work and "
                f"the processed status must commit in one database; use the same database for both"
            )

    async def check_database(self) -> None:
        """Raise ConfigurationError if the engine is not on the inbox's database. The store must be open."""
        try:
            first, second = await self._query_twice(self.store.sql["same_database"])
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"the engine's database cannot be reached: {type(error).__name__}") from error
        if self.on_sqlite:
            self._check_file(first[0])
        else:
            await self._check_server(first)
            if first != second:
                raise ConfigurationError(
                    "engine has isolation_level AUTOCOMMIT: each statement of a handler would commit by itself, "
                    "without the processed status; remove it, or set it only where your app needs it"
                )

    def check_handlers(self, handlers: Handlers) -> None:
        """Raise ConfigurationError for a handler whose kind does not match the engine."""
        for handler in handlers:
            if handler.takes_tx:
                self.check_kind(handler.name, is_async=handler.is_async)

    def check_kind(self, name: str, *, is_async: bool) -> None:
        if is_async and not self.is_async:
            raise ConfigurationError(
                f"{name} is an `async def`, but the engine of the inbox is synchronous: "
                f"make it a plain `def`, or pass a create_async_engine(…) to the inbox"
            )
        if self.is_async and not is_async:
            raise ConfigurationError(
                f"{name} is a plain `def`, but the engine of the inbox is asynchronous: "
                f"make it an `async def`, or pass a create_engine(…) to the inbox"
            )

    async def _query_twice(self, statement: str) -> list[Any]:
        """Run a query twice in one connection, and return both rows. With AUTOCOMMIT they have two transactions."""

        def query(connection: Connection) -> list[Any]:
            if isinstance(self.cleaner, PostgresCleaner):
                self.cleaner.check(connection)
            return [tuple(connection.execute(text(statement)).one()) for _ in range(2)]

        def connect_and_query(engine: Engine) -> list[Any]:
            with engine.connect() as connection:
                return query(connection)

        if isinstance(self.engine, Engine):
            return await asyncio.to_thread(connect_and_query, self.engine)
        async with self.engine.connect() as connection:
            return await connection.run_sync(query)

    def _check_file(self, file: str) -> None:
        ours = self.store.dialect.file(self.store.settings.database)
        assert ours is not None
        if not file or not Path(file).samefile(ours):
            raise ConfigurationError(
                f"engine opens {file or 'a database in memory'} and the inbox {ours.absolute()}: a handler's work and "
                f"the processed status must commit in one file; use the same file for both"
            )

    async def _check_server(self, theirs: tuple[Any, ...]) -> None:
        """Compare the databases, not their addresses: a socket, an alias and a PgBouncer may lead to the same one."""
        [ours] = await self.store.database.executor.read("same_database")
        if tuple(ours[:2]) != theirs[:2]:
            raise ConfigurationError(
                f"engine is on another PostgreSQL database ({theirs[0]}) than the inbox ({ours[0]}), or on another "
                f"server: a handler's work and the processed status must commit in one database; use the same for both"
            )
        if ours[2] != theirs[2]:
            raise ConfigurationError(
                "engine is on the inbox's database, but does not see its tables: use the same search_path for both"
            )


def _before_closing(dbapi_connection: Any, record: Any, error: Any) -> None:
    """Interrupt a cancelled statement and roll back before its connection is closed.

    Otherwise the connection keeps its write lock: SQLite does not close a connection with an unfinished cursor, and the
    error that is being raised holds one.
    """
    if KEY in record.info:
        await_only(interrupt_and_roll_back(record.driver_connection))
