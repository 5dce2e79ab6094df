"""The step around the claim: deliveries that cannot be claimed in time are accepted when they are on the disk.

A delivery is claimed as usual. If the database is unavailable, or has not answered after CLAIM_SECONDS, the delivery is
written to the spool. From then on, deliveries go to the spool directly, until a delivery of the spool could be claimed.
A claim that was too slow continues: if it is committed later, the delivery in the spool is its duplicate.
"""

import asyncio
from collections.abc import Callable, Sequence

from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import RowRefused, StoreUnavailable, Unavailable
from oncehook.observability import signals
from oncehook.receiver.claim import ClaimStep, new_waiter
from oncehook.receiver.spool.writer import SpooledDelivery, SpoolWriter

CLAIM_SECONDS = 1.5
"""How long a delivery waits for its claim. Slack and others wait three seconds for an answer."""

SLOW = StoreUnavailable("the database did not answer in time")
STOPPING = StoreUnavailable("the inbox is stopping")

Spools = Callable[[str], bool]
"""Returns whether deliveries to a source may be spooled."""


class SpoolStep:
    """Implements `ClaimStep` around another one."""

    def __init__(self, inner: ClaimStep, writer: SpoolWriter, spools: Spools) -> None:
        self.inner = inner
        self._writer = writer
        self._spools = spools
        self._claiming: set[asyncio.Task[list[Claimed]]] = set()
        self.is_spooling = False
        """Whether the last claim failed. Deliveries then go to the spool without an attempt to claim them."""

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        if not claims or not self._spools(claims[0].source):
            return await self.inner.claim(claims)
        loop = asyncio.get_running_loop()
        delivery = SpooledDelivery(claims, new_waiter(loop))
        if self.is_spooling and not self._writer.is_full:
            self._writer.add(delivery)
        else:
            self._claim_in_time(loop, delivery)
        return await delivery.waiter

    async def drain(self) -> None:
        """Wait until every claim that is under way has ended."""
        while self._claiming:
            await asyncio.wait(self._claiming)

    def resume(self) -> None:
        """Claim deliveries again: the database answers."""
        self.is_spooling = False

    def _claim_in_time(self, loop: asyncio.AbstractEventLoop, delivery: SpooledDelivery) -> None:
        claiming = loop.create_task(_as_coroutine(self.inner, delivery.claims))
        self._claiming.add(claiming)
        timer = loop.call_later(CLAIM_SECONDS, self._spool, delivery, SLOW)

        def end(task: "asyncio.Task[list[Claimed]]") -> None:
            self._claiming.discard(task)
            timer.cancel()
            error = STOPPING if task.cancelled() else task.exception()
            if error is None and not delivery.waiter.done():
                delivery.waiter.set_result(task.result())
            elif isinstance(error, RowRefused) and not delivery.waiter.done():
                delivery.waiter.set_exception(error)
            elif error is not None:
                failure = error if isinstance(error, Unavailable) else StoreUnavailable(f"the claim failed: {error!r}")
                self._spool(delivery, failure)

        claiming.add_done_callback(end)

    def _spool(self, delivery: SpooledDelivery, error: Unavailable) -> None:
        if delivery.waiter.done() or delivery.is_added:
            return
        delivery.error = error
        if not self.is_spooling:
            self.is_spooling = True
            signals.emit("spool_started", detail=error.detail)
        self._writer.add(delivery)


async def _as_coroutine(step: ClaimStep, claims: Sequence[Claim]) -> list[Claimed]:
    return await step.claim(claims)
