"""The user's engine: checked before it is used, and the source of every handler's transaction."""

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
from oncehook.integrations.sqlalchemy.async_transaction import AsyncTransaction, stop_and_undo
from oncehook.integrations.sqlalchemy.cleaner import KEY, Cleaner, PostgresCleaner, SqliteCleaner
from oncehook.integrations.sqlalchemy.sync_transaction import SyncTransaction
from oncehook.integrations.sqlalchemy.transaction import SessionTransaction
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store.store import Store

DIALECTS = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
SETTLING_THREADS = 16
"""Apart from those that handlers run in: those may all be waiting for the one that is to be settled."""

ASKING_THREADS = 64
"""For effects and entities that handlers ask for, which may wait for a connection; apart from those above."""


class Sessions:
    """Handlers' transactions out of a user's engine, which must be on the inbox's own database."""

    def __init__(self, engine: Engine | AsyncEngine, store: Store) -> None:
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

    def transaction(self) -> SessionTransaction:
        """A handler's transaction, not begun yet."""
        return AsyncTransaction(self) if self.is_async else SyncTransaction(self)

    def with_store(self, store: Store) -> "Sessions":
        """The same on another store of the same database, such as one that is open for one operation."""
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
        """Close the engine's connections. Only for a process that is ours and ends: an app goes on using them."""
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
            if isinstance(self.cleaner, PostgresCleaner):
                self.cleaner.check(connection)
            return [tuple(connection.execute(text(statement)).one()) for _ in range(2)]

        def ask_in_thread(engine: Engine) -> list[Any]:
            with engine.connect() as connection:
                return ask(connection)

        if isinstance(self.engine, Engine):
            return await asyncio.to_thread(ask_in_thread, self.engine)
        async with self.engine.connect() as connection:
            return await connection.run_sync(ask)

    def _check_file(self, file: str) -> None:
        ours = self.store.dialect.file(self.store.settings.database)
        assert ours is not None
        if not file or not Path(file).samefile(ours):
            raise ConfigurationError(
                f"engine opens {file or 'a database in memory'} and the inbox {ours.absolute()}: a handler's work and "
                f"its mark can only commit together in one file; give both the same"
            )

    async def _check_server(self, theirs: tuple[Any, ...]) -> None:
        """Not by address: a socket, an alias and a PgBouncer lead to the same database under different names."""
        [ours] = await self.store.database.executor.read("same_database")
        if tuple(ours[:2]) != theirs[:2]:
            raise ConfigurationError(
                f"engine is on another PostgreSQL database ({theirs[0]}) than the inbox ({ours[0]}), or on another "
                f"server: a handler's work and its mark can only commit together in one; give both the same"
            )
        if ours[2] != theirs[2]:
            raise ConfigurationError(
                "engine is on the inbox's database, but does not see its tables: give both the same search_path"
            )


def _before_closing(dbapi_connection: Any, record: Any, error: Any) -> None:
    """A cancelled statement's connection is closed, but only after it has ended, and it keeps the lock even then.

    SQLite closes nothing under an unfinished cursor, and the error that is on its way holds one.
    """
    if KEY in record.info:
        await_only(stop_and_undo(record.driver_connection))
