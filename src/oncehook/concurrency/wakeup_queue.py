"""Local wake-ups for retries that are due soon, so that a short backoff does not take a whole `poll` interval.

A wake-up is only a hint. The database's clock decides which receipts are due, and polling finds all of them.
"""

import math

from oncehook.concurrency.clock import SYSTEM, Clock

HORIZON = 10.0
"""Seconds. Wake-ups further ahead are not stored: polling finds those receipts."""

STEP = 0.02
"""Seconds between two wake-ups, at least. At most HORIZON / STEP wake-ups are stored."""


class WakeupQueue:
    """The times at which a worker or relay should look for work without being woken."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self._steps: set[int] = set()

    def schedule(self, after: float | None) -> None:
        """Schedule a wake-up in `after` seconds. Does nothing if `after` is None."""
        if after is not None and after <= HORIZON:
            due = self.clock.monotonic() + after + 0.002  # SQLite stores whole milliseconds
            self._steps.add(math.ceil(due / STEP))

    def seconds_left(self, poll: float) -> float:
        """Seconds until the next wake-up, at most `poll`. Removes the wake-ups that are due."""
        now = self.clock.monotonic()
        passed = {step for step in self._steps if step * STEP <= now}
        self._steps -= passed
        if passed:
            return 0.0
        return min(poll, min(self._steps) * STEP - now) if self._steps else poll
