"""Settles effects in batches, with one fsync per batch."""

import asyncio

from oncehook.model.effect import SettledEffect
from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.protocols import EffectStore

TRIES = 5
"""How often a write is tried before the lease of its effects is left to expire."""


class EffectSettler:
    """Writes the results of effects.

    The first result is written immediately. Results that arrive during that write share the next one and its fsync.
    """

    def __init__(self, store: EffectStore) -> None:
        self.store = store
        self._waiting: list[tuple[SettledEffect, asyncio.Future[bool | None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def settle(self, settled: SettledEffect) -> bool | None:
        """Settle an effect. Returns False if its lease was lost.

        Returns None if the result is unknown. Then the lease may expire and the call be repeated.
        """
        landed: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((settled, landed))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return await landed

    async def _write(self) -> None:
        batch: list[tuple[SettledEffect, asyncio.Future[bool | None]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                landed = await self._write_batch([settled for settled, _ in batch])
                for settled, waiter in batch:
                    if not waiter.done():
                        waiter.set_result(None if landed is None else settled.id in landed)
                reach(Checkpoint.EFFECTS_SETTLED)
        finally:
            self._writing = None
            unsettled, self._waiting = [*batch, *self._waiting], []  # only if this was cancelled
            for _, waiter in unsettled:
                if not waiter.done():
                    waiter.set_result(None)

    async def _write_batch(self, settled: list[SettledEffect]) -> set[int] | None:
        """Write results, with retries. Returns the ids that were settled, or None if that is unknown."""
        for number in range(1, TRIES + 1):
            try:
                landed = await self.store.settle(settled)
            except Unavailable as error:
                if number == TRIES:
                    signals.emit("effect_settle_failed", effects=len(settled), detail=error.detail)
                    break
                await asyncio.sleep(0.1 * 2**number)
            except Exception as error:  # a bug in Oncehook must not block the waiting calls forever
                signals.log_background_failure("relay settling", error)
                break
            else:
                return landed if number == 1 else None  # an earlier try may have committed without a reply
        return None
