"""The rate of a consumer: its worker takes a token from the shared bucket for each receipt before it leases.

A worker without tokens leases nothing, so waiting uses no attempt and holds no lease. Tokens for which no receipt was
due go back to the bucket at once, so that other processes can use them.
"""

from contextlib import suppress

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import Unavailable
from oncehook.store.protocols import RateStore

BURST_SECONDS = 0.1
"""A bucket holds one token and those of this time, so that a worker that wakes up late loses none."""

MIN_WAIT = 0.05
"""The least seconds between two queries of an empty bucket. It is shorter than BURST_SECONDS, so no token is lost."""


class RateLimit:
    """Takes the tokens of one consumer in this process."""

    def __init__(self, rates: RateStore, consumer: str, rate: float, clock: Clock = SYSTEM) -> None:
        self.rates = rates
        self.consumer = consumer
        self.rate = rate
        self.burst = 1.0 + rate * BURST_SECONDS
        self.clock = clock
        self._next = 0.0  # the bucket has no token before this time

    async def take(self, wanted: int) -> int:
        """Take up to `wanted` tokens. While the bucket is known to be empty, return 0 without a query."""
        if wanted < 1 or self.seconds_left() > 0:
            return 0
        tokens = await self.rates.take(self.consumer, wanted, self.rate, self.burst)
        if tokens.granted < wanted:
            self._next = self.clock.monotonic() + max(tokens.wait, MIN_WAIT)
        return tokens.granted

    async def refund(self, tokens: int) -> None:
        """Return unused tokens. If that fails, they are lost, and the bucket fills up again."""
        if tokens > 0:
            self._next = 0.0
            with suppress(Unavailable):
                await self.rates.refund(self.consumer, tokens, self.burst)

    def seconds_left(self) -> float:
        """The seconds until the bucket may have a token."""
        return max(0.0, self._next - self.clock.monotonic())
