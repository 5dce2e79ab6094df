"""Live updates: a stream of server-sent events that notifies the pages of changes.

A notified page loads itself again and replaces the changed parts. One query every POLL_SECONDS serves all open pages.
No query runs while no page is open.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from oncehook.model.errors import Unavailable
from oncehook.store.operator_protocols import StatStore

POLL_SECONDS = 2.0
MAX_STREAMS = 100
"""Maximum concurrent streams of this process. A page without a stream works as it does without JavaScript."""

KEEPALIVE_SECONDS = 15.0


class Live:
    """Polls the store for changes while at least one stream is open."""

    def __init__(self, stats: StatStore, stream_seconds: float | None = None) -> None:
        self.stats = stats
        self.stream_seconds = (
            stream_seconds  # a stream ends after this time and the page opens the next; None: no limit
        )
        self.listeners = 0
        self._changed = asyncio.Event()
        self._change_token: str | None = None
        self._poller: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def token(self) -> str:
        """The last state of the database that was seen. A page that reads the database now shows it or a later one."""
        return self._change_token or ""

    @property
    def is_full(self) -> bool:
        return self.listeners >= MAX_STREAMS

    async def stream(self, last_id: str | None = None) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events until the client disconnects or the service stops.

        `last_id` is the id of the last event of an earlier stream, or the `token` from before the page was rendered.
        Changes since then produce an event immediately.
        """
        self.listeners += 1
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        now = asyncio.get_running_loop().time
        ends = now() + (self.stream_seconds or float("inf"))
        try:
            yield b": connected\n\nretry: %d\n\n" % (5000 if self.stream_seconds is None else 100)
            while not self._is_over() and now() < ends:
                if self._change_token is not None and last_id != self._change_token:
                    event = b"" if last_id is None else b"event: changed\ndata: \n"
                    last_id = self._change_token
                    yield event + b"id: " + last_id.encode() + b"\n\n"
                    continue
                try:
                    await asyncio.wait_for(self._changed.wait(), min(KEEPALIVE_SECONDS, ends - now()))
                except TimeoutError:
                    yield b": keepalive\n\n"
        finally:
            self.listeners -= 1
            if not self.listeners and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    def _is_over(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """End every stream, because a draining server waits for open connections."""
        self._stopped = True
        self._changed.set()

    async def _poll(self) -> None:
        while True:
            with suppress(Unavailable):
                token = await self.stats.change_token()
                if token != self._change_token:
                    self._change_token = token
                    self._notify()
            await asyncio.sleep(POLL_SECONDS)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
