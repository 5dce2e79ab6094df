"""Where a delivery is verified: a small one in the event loop, a large one in a thread, so that the loop goes on.

Hashing some megabytes releases the GIL. What is read out of an unverified body is bounded by itself; the thread is not
what makes it cheap. Strangers share one thread, and what waits for it is bounded in bytes.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from oncehook.model.delivery import LARGE, Delivery
from oncehook.model.errors import Unavailable
from oncehook.providers.source import Source
from oncehook.providers.verify import Verifier

Result = TypeVar("Result")

MOST_KEYS = 4
"""At most this many keys are fetched for one delivery. One that names more is verified with those that there are."""


class Verifying:
    """Runs the work of verifying: one large delivery at a time."""

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._waiting = 0  # bytes of the bodies that are in the thread or wait for it
        self._pool = ThreadPoolExecutor(1, "oncehook-verify")  # starts its thread with the first large body

    async def run(self, delivery: Delivery, work: Callable[[Delivery], Result]) -> Result:
        """What `work` says of a delivery. Raises Unavailable if too many bytes wait already."""
        size = len(delivery.body)
        if size <= LARGE:
            return work(delivery)
        if self._waiting and self._waiting + size > self.limit_bytes:
            raise Unavailable("the bodies that wait to be verified hold too many bytes", retry_after=2)
        self._waiting += size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, delivery)
        finally:
            self._waiting -= size

    async def fetch_keys(self, source: Source, verifier: Verifier, delivery: Delivery, now: float) -> None:
        """Fetch the certificates and keys that a delivery names and that are not here yet."""
        find = partial(verifier.key_to_fetch, now=now)
        for _ in range(MOST_KEYS):
            request = await self.run(delivery, find)
            if request is None or not await source.certificates.ensure(request):
                break
        source.certificates.renew()
