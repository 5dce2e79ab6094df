"""Verifies large deliveries in a thread, so that they do not block the event loop.

Hashing several megabytes releases the GIL. Unverified senders share one thread, and the bytes that wait for it are
bounded. Small deliveries are verified in the event loop. The thread does not bound the cost of a delivery: the
parsers of unverified bodies have their own limits.
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

MAX_KEYS = 4
"""The most keys that are fetched for one delivery. If it names more, it is verified with the keys that are known."""


class VerificationThread:
    """Runs verification: small deliveries in the caller's loop, large ones one at a time in a thread."""

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._waiting = 0  # bytes of the bodies that are in the thread or wait for it
        self._pool = ThreadPoolExecutor(1, "oncehook-verify")  # starts its thread with the first large body

    async def run(self, delivery: Delivery, work: Callable[[Delivery], Result]) -> Result:
        """Return `work(delivery)`. Raises Unavailable if too many bytes wait for the thread."""
        size = len(delivery.body)
        if size <= LARGE:
            return work(delivery)
        if self._waiting and self._waiting + size > self.limit_bytes:
            raise Unavailable("too many bytes of bodies wait to be verified", retry_after=2)
        self._waiting += size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, delivery)
        finally:
            self._waiting -= size

    async def fetch_keys(self, source: Source, verifier: Verifier, delivery: Delivery, now: float) -> None:
        """Fetch the certificates and keys that a delivery names and that are not cached."""
        find_missing = partial(verifier.key_to_fetch, now=now)
        for _ in range(MAX_KEYS):
            missing = await self.run(delivery, find_missing)
            if missing is None or not await source.certificates.ensure(missing):
                break
        source.certificates.renew()
