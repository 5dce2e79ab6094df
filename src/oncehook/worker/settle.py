"""Settles receipts in batches: those whose handler did not use its transaction share one statement and one fsync.

This is the same group commit as in the receiver. The first receipt is settled immediately; receipts that arrive during
that write share the next one.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from oncehook.model.errors import StoreUnavailable, Unavailable
from oncehook.model.lease import Settled
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.protocols import LeaseStore

MAX_BATCH = 500
CANCELLED = "the write of the result was cancelled"


class Settler:
    """Writes the results of attempts, many in one statement."""

    def __init__(self, leases: LeaseStore) -> None:
        self.leases = leases
        self._waiting: deque[tuple[Settled, asyncio.Future[bool]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def settle(self, settled: Settled) -> bool:
        """Settle a receipt. Returns False if its lease was lost; raises Unavailable if the result is unknown.

        A caller that is cancelled still waits for the result, because a settled receipt must not be released.
        """
        landed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((settled, landed))
        if self._task is None:
            self._task = asyncio.create_task(self._flush())
        try:
            return await asyncio.shield(landed)
        except asyncio.CancelledError:
            return await landed

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                await self._write(batch)
        except asyncio.CancelledError:  # their slots must not wait for a task that is gone
            _fail(self._waiting, StoreUnavailable(CANCELLED))
            self._waiting.clear()
            raise
        finally:
            self._task = None

    async def _write(self, batch: list[tuple[Settled, "asyncio.Future[bool]"]]) -> None:
        batch.sort(key=lambda pair: pair[0].receipt)
        try:
            landed = await self.leases.settle([settled for settled, _ in batch])
        except Unavailable as error:
            _fail(batch, error)
        except asyncio.CancelledError:
            _fail(batch, StoreUnavailable(CANCELLED))
            raise
        except Exception as error:  # a bug in Oncehook must not block a slot forever
            _fail(batch, StoreUnavailable(f"the store failed: {error!r}"))
        else:
            for settled, waiter in batch:
                if not waiter.done():
                    waiter.set_result(settled.receipt in landed)
        reach(Checkpoint.RECEIPTS_SETTLED)


def _fail(batch: Iterable[tuple[Settled, "asyncio.Future[bool]"]], error: Unavailable) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
