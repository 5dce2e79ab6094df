"""Duplicates are appended aside, in the background: one never writes on its receipt, and never slows the door."""

import asyncio
from collections import deque

from oncehook import signals
from oncehook.errors import Unavailable
from oncehook.receipt import Claim, Claimed, Duplicate
from oncehook.store import Store

MOST_WAITING = 10_000
BATCH = 500
PAUSE = 0.2
"""Seconds over which duplicates are gathered into one write."""


class DuplicateLog:
    """Notes duplicates soon, in batches. When too many wait, the newest are counted instead of noted."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dropped = 0
        self._waiting: deque[Duplicate] = deque()
        self._task: asyncio.Task[None] | None = None

    def note(self, claim: Claim, outcome: Claimed) -> None:
        """Remember one for the next write. Never waits, never raises."""
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(Duplicate(outcome.receipt, claim.delivery_id, claim.fingerprint, outcome.same_body))
        if self._task is None:
            self._task = asyncio.create_task(self._write_soon())

    async def drain(self) -> None:
        """Write what still waits."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._write()

    async def _write_soon(self) -> None:
        while self._waiting:
            await asyncio.sleep(PAUSE)
            await asyncio.shield(asyncio.ensure_future(self._write()))
        self._task = None

    async def _write(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            try:
                await self.store.note_duplicates(batch)
            except Unavailable as error:
                signals.emit("deliveries_lost", count=len(batch), detail=error.detail)
                return
        if self.dropped:
            signals.emit("deliveries_dropped", count=self.dropped)
            self.dropped = 0
