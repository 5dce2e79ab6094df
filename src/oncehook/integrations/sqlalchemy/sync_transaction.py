"""A handler's transaction on an `Engine`, for plain handlers, which run in a thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from oncehook.integrations.sqlalchemy.cleaner import KEY
from oncehook.integrations.sqlalchemy.session import HandlerSession, used_by_oncehook
from oncehook.integrations.sqlalchemy.transaction import SessionTransaction
from oncehook.integrations.user_transaction import interrupt, taken_from_handler
from oncehook.model.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehook.integrations.sqlalchemy.engine import Sessions

T = TypeVar("T")


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
        return await asyncio.shield(self._loop.run_in_executor(self.sessions.threads, self._run_exclusively, work))

    async def _run_statement(self, work: Callable[[HandlerSession], T]) -> T:
        return await asyncio.shield(
            self._loop.run_in_executor(self.sessions.statement_threads, self._run_with_lock, work)
        )

    def _run_with_lock(self, work: Callable[[HandlerSession], T]) -> T:
        token = used_by_oncehook.set(self.session)
        try:
            with self._lock:
                return work(self.session)
        finally:
            used_by_oncehook.reset(token)

    def _run_exclusively(self, work: Callable[[HandlerSession], T]) -> T:
        """Run `work`, after interrupting the handler's thread, which may still run a statement after its timeout."""
        with taken_from_handler(self._lock, self._driver):
            return self._run_with_lock(work)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if asyncio._get_running_loop() is self._loop:  # waiting here would deadlock the event loop
            coroutine.close()
            raise ConfigurationError(
                "a synchronous session was used in the event loop: make the handler a plain `def` that returns no "
                "awaitable, or pass a create_async_engine(…) to the inbox"
            )
        self._waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        result: T = self._waiting.result()
        return result

    async def _interrupt_and_roll_back(self) -> None:
        interrupt(self._driver)
        await self._run(lambda session: self._driver.rollback())
