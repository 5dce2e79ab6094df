"""A handler's transaction on a connection of the user's own: a SQLAlchemy session or a Django connection.

On SQLite, one handler at a time holds the write lock, and only for a limited time.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from oncehook.concurrency.calling import Function
from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Settled
from oncehook.store.sqlite import handler as sqlite_handler
from oncehook.store.store import Store
from oncehook.store.transaction import AFTER_HANDLER_ENDED, TransactionClosed

SETTLING_THREADS = 16
"""Threads that settle. They are not those of handlers, which may all be waiting for one that is being settled."""

STATEMENT_THREADS = 64
"""Threads for the statements of effects and entities, which may wait for a connection. Settling uses other threads."""

PATIENCE = 10.0
"""How many seconds the thread of a handler that timed out may take to leave its current statement."""


class UserTransaction(ABC):
    """The order of the steps that end a handler's transaction. A subclass runs them on its connection."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_sqlite = store.dialect.single_writer
        self._loop = asyncio.get_running_loop()
        self._write_lock: asyncio.Lock | None = None  # not None while this transaction holds it
        self._limit: asyncio.TimerHandle | None = None
        self._interruption: asyncio.Task[None] | None = None
        self._ended = False
        self._finished = False

    @abstractmethod
    async def _settle_and_commit(self, settled: Sequence[Settled]) -> bool:
        """Write the processed status as the last statement, and commit. Returns False if the lease was lost."""

    @abstractmethod
    async def _roll_back(self) -> None:
        """Roll back in the connection, and release it."""

    @abstractmethod
    async def _interrupt_and_roll_back(self) -> None:
        """Interrupt the statement that SQLite runs, and roll back in the driver."""

    # -- used by the worker ---------------------------------------------------------------------------------------

    def bind(self, function: Function) -> Function:
        """Return the function to call for the handler."""
        return function

    def close_tx(self) -> None:
        """Close the `tx` of the handler, which has ended."""
        self._ended = True

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """Write the processed status and commit it with the handler's work. If this raises, all is rolled back."""
        self.close_tx()
        try:
            self._check_limit()
            self._stop_limit()
            if self.on_sqlite and self._write_lock is None:  # nothing was sent yet
                await self._acquire_write_lock()
            landed = await self._settle_and_commit(settled)
        except BaseException:
            await asyncio.shield(self.rollback())
            raise
        if not landed:
            await self.rollback()
        self._finished = True
        self._release_write_lock()
        return landed

    async def rollback(self) -> None:
        self.close_tx()
        if self._finished:
            return
        self._finished = True
        self._stop_limit()
        if self._interruption is not None:
            await asyncio.gather(self._interruption, return_exceptions=True)
        try:
            await self._roll_back()
        finally:
            self._release_write_lock()

    async def _prepare_statement(self) -> None:
        """Check that one of the store's statements may run, and take SQLite's write lock for it."""
        self._check_limit()
        if self._finished:
            raise TransactionClosed(AFTER_HANDLER_ENDED)
        if self.on_sqlite and self._write_lock is None:
            await self._acquire_write_lock()

    # -- SQLite: one writer, for a limited time -------------------------------------------------------------------

    async def _acquire_write_lock(self) -> None:
        lock = self.store.database.handler_lock
        assert lock is not None
        await lock.acquire()
        if self._finished:  # rolled back while it waited
            lock.release()
            raise TransactionClosed(AFTER_HANDLER_ENDED)
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

    def _check_limit(self) -> None:
        if self._interruption is not None:
            raise StoreUnavailable(sqlite_handler.lock_timeout_message(sqlite_handler.MAX_HANDLER_SECONDS))


@contextmanager
def taken_from_handler(lock: Any, driver: Any) -> Iterator[None]:
    """Hold the lock of a connection whose handler may still run a statement after its timeout: interrupt it."""
    for _ in range(int(PATIENCE / 0.1)):
        if lock.acquire(timeout=0.1):
            break
        interrupt(driver)
    else:
        raise StoreUnavailable("the handler's thread did not leave its statement")
    try:
        yield
    finally:
        lock.release()


def interrupt(driver: Any) -> None:
    """Interrupt the running statement of a connection, from any thread."""
    stop = getattr(driver, "interrupt", None) or getattr(driver, "cancel", None)  # sqlite3, psycopg
    if stop is not None:
        stop()
