"""A token bucket in the memory of one process. It limits lookups, and the deliveries of a tenant."""


class Budget:
    """Allows `rate` uses per second on average, and up to `burst` at once."""

    __slots__ = ("_tokens", "_updated", "burst", "rate")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self.rate = rate
        self.burst = max(1.0, rate if burst is None else burst)
        self._tokens = self.burst
        self._updated = float("-inf")

    def take(self, now: float) -> bool:
        """Use the budget once at time `now`. Returns False, and uses nothing, if it is exhausted."""
        elapsed = max(0.0, now - self._updated)
        self._updated = max(now, self._updated)
        self._tokens = min(self.burst, self._tokens + elapsed * self.rate)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    @property
    def wait(self) -> float:
        """Seconds until the next use is allowed."""
        return max(0.0, 1.0 - self._tokens) / self.rate
