"""Pages that stay current: a stream of server-sent events that says when something has changed.

A page then asks for itself again and takes what is new. One look at the database every other second serves every open
page, and none is taken while none is open.
"""

import asyncio
from collections.abc import AsyncIterator

from oncehook.errors import Unavailable
from oncehook.store import Store

EVERY = 2.0
MOST = 100
"""Streams at once in this process; a page without one works as it does without JavaScript."""

KEPT_ALIVE = 15.0


class Live:
    """Watches the store while somebody looks."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.listeners = 0
        self._changed = asyncio.Event()
        self._version = 0  # what changes while a stream is being written to is not missed
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def is_full(self) -> bool:
        return self.listeners >= MOST

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events, until the client leaves or the service stops. The first bytes come at once."""
        self.listeners += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            yield b": here\n\nretry: 5000\n\n"
            seen = self._version
            while not self._is_over():
                try:
                    if seen == self._version:
                        await asyncio.wait_for(self._changed.wait(), KEPT_ALIVE)
                except TimeoutError:
                    yield b": still here\n\n"
                else:
                    seen = self._version
                    if self._is_over():
                        break
                    yield b"event: changed\ndata: \n\n"
        finally:
            self.listeners -= 1
            if not self.listeners and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    def _is_over(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """End every stream: a server that drains waits for them."""
        self._stopped = True
        self._changed.set()

    async def _watch(self) -> None:
        last: str | None = None
        now: str | None
        while True:
            try:
                now = await self.store.pulse()
            except Unavailable:
                now = last
            if now != last and last is not None:
                self._tell()
            last = now
            await asyncio.sleep(EVERY)

    def _tell(self) -> None:
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
