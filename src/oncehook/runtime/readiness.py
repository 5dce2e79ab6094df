"""The readiness check: whether an event could be committed now."""

import asyncio

from oncehook.model.errors import Unavailable
from oncehook.store.store import Store

READY_SECONDS = 1.8


class Readiness:
    """Checks that the store accepts a write. Concurrent requests share one check."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._checking: asyncio.Task[None] | None = None

    def reset(self) -> None:
        """Drop a check that started in an earlier event loop, because it never ends."""
        self._checking = None

    async def check(self) -> None:
        """Return if an event could be committed now, else raise Unavailable. Takes at most READY_SECONDS."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self.store.ping())
            self._checking.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait([self._checking], timeout=READY_SECONDS)
        if not done:
            raise Unavailable("the database did not accept a write in time")
        self._checking.result()
