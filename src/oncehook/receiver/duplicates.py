"""Duplicates are appended aside, in the background: one never writes on its receipt, and never slows the door."""

import asyncio
from collections import deque

from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.protocols import ClaimStore

MOST_WAITING = 10_000
BATCH = 500
PAUSE = 0.2
"""Seconds over which duplicates are gathered into one write."""


class DuplicateLog:
    """Notes duplicates soon, in batches. When too many wait, the newest are counted instead of noted."""

    def __init__(self, store: ClaimStore) -> None:
        self.store = store
        self.dropped = 0
        self._waiting: deque[Duplicate] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def note(self, claim: Claim, outcome: Claimed) -> None:
        """Remember one for the next write. Never waits, never raises."""
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(Duplicate(outcome.receipt, claim.delivery_id, claim.fingerprint, outcome.same_body))
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._start)

    async def drain(self) -> None:
        """Write what still waits, and wait for what is under way."""
        while self._waiting or self._writing is not None:
            await asyncio.wait([self._writing or self._start()])

    def _start(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._writing = asyncio.create_task(self._write())
        return self._writing

    async def _write(self) -> None:
        try:
            for _ in range(0, len(self._waiting), BATCH):
                if self._waiting:
                    await self._write_batch()
            if self.dropped:
                signals.emit("duplicate_records_dropped", count=self.dropped)
                self.dropped = 0
        finally:
            self._writing = None
            reach(Checkpoint.DUPLICATES_RECORDED)
            if self._waiting:
                self._timer = asyncio.get_running_loop().call_later(PAUSE, self._start)

    async def _write_batch(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            await self.store.note_duplicates(batch)
        except Exception as error:
            # Who was acked is recorded; that it came again is not worth holding up whoever waits for a dead database.
            detail = error.detail if isinstance(error, Unavailable) else f"the store failed: {type(error).__name__}"
            signals.emit("duplicate_records_lost", count=len(batch) + len(self._waiting), detail=detail)
            self._waiting.clear()
