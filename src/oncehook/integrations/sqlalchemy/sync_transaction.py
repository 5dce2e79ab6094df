"""A transaction on an `Engine`, for handlers that run in a thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from oncehook.integrations.sqlalchemy.cleaner import KEY
from oncehook.integrations.sqlalchemy.session import HandlerSession, used_by_oncehook
from oncehook.integrations.sqlalchemy.transaction import SessionTransaction
from oncehook.model.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from oncehook.integrations.sqlalchemy.engine import Sessions

T = TypeVar("T")

PATIENCE = 10.0
"""How long a thread that was cut off may take to leave the statement that it is in."""


class SyncTransaction(SessionTransaction):
    """A `Session` for a plain `def` handler, which runs in a thread."""

    def __init__(self, sessions: "Sessions") -> None:
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
        token = used_by_oncehook.set(self.session)
        try:
            with self._lock:
                return work(self.session)
        finally:
            used_by_oncehook.reset(token)

    def _alone(self, work: Callable[[HandlerSession], T]) -> T:
        """A handler's thread cannot be stopped: it may still be in a statement when its time is up."""
        for _ in range(int(PATIENCE / 0.1)):
            if self._lock.acquire(timeout=0.1):
                break
            self._interrupt()
        else:
            raise StoreUnavailable("the handler's thread does not leave its statement")
        token = used_by_oncehook.set(self.session)
        try:
            return work(self.session)
        finally:
            used_by_oncehook.reset(token)
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
