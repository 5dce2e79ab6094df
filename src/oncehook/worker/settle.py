"""Settling in bulk: receipts whose handler never touched its transaction share one statement and one fsync.

The same group commit as at the door: the first settles at once, whoever comes meanwhile goes together in the next.
"""

import asyncio
from collections import deque

from oncehook.model.errors import StoreUnavailable, Unavailable
from oncehook.model.lease import Settled
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.protocols import LeaseStore

MOST_IN_A_BATCH = 500


class Settler:
    """Writes what came of attempts, many at once."""

    def __init__(self, leases: LeaseStore) -> None:
        self.leases = leases
        self._waiting: deque[tuple[Settled, asyncio.Future[bool]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def settle(self, settled: Settled) -> bool:
        """Whether it landed: False if the lease was lost. Raises Unavailable if it is not known.

        Whoever is cancelled meanwhile waits for the answer all the same: what was done is not to be given back.
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
                batch = [self._waiting.popleft() for _ in range(min(MOST_IN_A_BATCH, len(self._waiting)))]
                await self._write(batch)
        finally:
            self._task = None

    async def _write(self, batch: list[tuple[Settled, "asyncio.Future[bool]"]]) -> None:
        batch.sort(key=lambda pair: pair[0].receipt)
        try:
            landed = await self.leases.settle([settled for settled, _ in batch])
        except Unavailable as error:
            _fail(batch, error)
        except Exception as error:  # a bug of ours must not leave a slot waiting for ever
            _fail(batch, StoreUnavailable(f"the store failed: {error!r}"))
        else:
            for settled, waiter in batch:
                if not waiter.done():
                    waiter.set_result(settled.receipt in landed)
        reach(Checkpoint.RECEIPTS_SETTLED)


def _fail(batch: list[tuple[Settled, "asyncio.Future[bool]"]], error: Unavailable) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
