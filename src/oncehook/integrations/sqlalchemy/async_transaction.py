"""A handler's transaction on an `AsyncEngine`."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.util import await_only

from oncehook.integrations.sqlalchemy.cleaner import KEY
from oncehook.integrations.sqlalchemy.session import HandlerSession, used_by_oncehook
from oncehook.integrations.sqlalchemy.transaction import SessionTransaction

if TYPE_CHECKING:
    from oncehook.integrations.sqlalchemy.engine import Sessions

T = TypeVar("T")


class AsyncTransaction(SessionTransaction):
    """An `AsyncSession` for an `async def` handler."""

    def __init__(self, sessions: "Sessions") -> None:
        super().__init__(sessions)
        self.in_use = nullcontext()
        self.tx = AsyncSession(sessions.engine, sync_session_class=HandlerSession, info={KEY: self})  # type: ignore[arg-type]
        self.session = self.tx.sync_session

    async def _run(self, work: Callable[[HandlerSession], T]) -> T:
        token = used_by_oncehook.set(self.session)
        try:
            result: T = await self.tx.run_sync(work)
            return result
        finally:
            used_by_oncehook.reset(token)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: T = await_only(coroutine)
        return result

    async def _interrupt_and_roll_back(self) -> None:
        await interrupt_and_roll_back(self._driver)


async def interrupt_and_roll_back(driver: Any) -> None:
    """Interrupt the running statement of an aiosqlite connection, and roll back."""
    try:
        await driver.interrupt()
        await asyncio.wait_for(driver.rollback(), 1)
    except (TimeoutError, ValueError):
        pass  # the connection is being closed, which also rolls back, and does not respond any more
