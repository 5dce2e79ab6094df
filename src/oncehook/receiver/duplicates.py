"""Records duplicates in the background. A duplicate never updates its receipt and never delays the receiver."""

import asyncio
from collections import deque

from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.protocols import ClaimStore

MAX_WAITING = 10_000
BATCH = 500
PAUSE = 0.2
"""Seconds during which duplicates are collected for one write."""


class DuplicateLog:
    """Writes duplicates in batches. If more than MAX_WAITING wait, it drops the newest and logs how many."""

    def __init__(self, store: ClaimStore) -> None:
        self.store = store
        self.dropped = 0
        self._waiting: deque[Duplicate] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def note(self, claim: Claim, outcome: Claimed) -> None:
        """Queue a duplicate for the next write. Never waits, never raises."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(Duplicate(outcome.receipt, claim.delivery_id, claim.fingerprint, outcome.same_body))
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._start)

    async def drain(self) -> None:
        """Write all waiting duplicates, and wait for the write that is running."""
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
            # The receipts are recorded. Retrying here would only delay a shutdown while the database is down.
            detail = error.detail if isinstance(error, Unavailable) else f"the store failed: {type(error).__name__}"
            signals.emit("duplicate_records_lost", count=len(batch) + len(self._waiting), detail=detail)
            self._waiting.clear()
