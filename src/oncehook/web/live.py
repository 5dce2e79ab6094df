"""Pages that stay current: a stream of server-sent events that says when something has changed.

A page then asks for itself again and takes what is new. One look at the database every other second serves every open
page, and none is taken while none is open.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from oncehook.model.errors import Unavailable
from oncehook.store.operator_protocols import StatStore

EVERY = 2.0
MOST = 100
"""Streams at once in this process; a page without one works as it does without JavaScript."""

KEPT_ALIVE = 15.0


class Live:
    """Watches the store while somebody looks."""

    def __init__(self, stats: StatStore, longest: float | None = None) -> None:
        self.stats = stats
        self.longest = longest  # seconds that a stream lasts; the page opens the next one at once
        self.listeners = 0
        self._changed = asyncio.Event()
        self._pulse: str | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def is_full(self) -> bool:
        return self.listeners >= MOST

    async def stream(self, seen: str | None = None) -> AsyncIterator[bytes]:
        """Server-sent events, until the client leaves or the service stops. The first bytes come at once.

        `seen` is the id of the last event of an earlier stream: what has changed since then is told.
        """
        self.listeners += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        now = asyncio.get_running_loop().time
        ends = now() + (self.longest or float("inf"))
        try:
            yield b": here\n\nretry: %d\n\n" % (5000 if self.longest is None else 100)
            while not self._is_over() and now() < ends:
                if self._pulse is not None and seen != self._pulse:
                    told = b"" if seen is None else b"event: changed\ndata: \n"
                    seen = self._pulse
                    yield told + b"id: " + seen.encode() + b"\n\n"
                    continue
                try:
                    await asyncio.wait_for(self._changed.wait(), min(KEPT_ALIVE, ends - now()))
                except TimeoutError:
                    yield b": still here\n\n"
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
        while True:
            with suppress(Unavailable):
                now = await self.stats.pulse()
                if now != self._pulse:
                    self._pulse = now
                    self._tell()
            await asyncio.sleep(EVERY)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
