"""Whether an event could be committed now."""

import asyncio

from oncehook.model.errors import Unavailable
from oncehook.store.store import Store

READY_SECONDS = 1.8


class Readiness:
    """Checks that the store takes a write. Requests that come during a check share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._checking: asyncio.Task[None] | None = None

    def reset(self) -> None:
        """Forget a check that was begun in an earlier event loop: it never ends."""
        self._checking = None

    async def check(self) -> None:
        """Return if an event could be committed now, else raise Unavailable, within READY_SECONDS whatever happens."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self.store.ping())
            self._checking.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait([self._checking], timeout=READY_SECONDS)
        if not done:
            raise Unavailable("the database does not take a write in time")
        self._checking.result()
