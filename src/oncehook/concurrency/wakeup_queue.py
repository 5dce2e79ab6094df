"""When what was put back here is due again, so that a short pause is not as long as `poll`.

A hint, as every wake-up: the database's clock decides what is due, and what is not remembered here is found by looking.
"""

import math

from oncehook.concurrency.clock import SYSTEM, Clock

SOON = 10.0
"""Seconds. What is due later than that is found by looking."""

STEP = 0.02
"""Seconds from one look to the next at least, however many are due: there are SOON / STEP times to remember."""


class Dues:
    """The times at which a worker or a relay should look by itself."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self._steps: set[int] = set()

    def add(self, after: float | None) -> None:
        """Something is due so many seconds from now; None: it is not."""
        if after is not None and after <= SOON:
            due = self.clock.monotonic() + after + 0.002  # SQLite counts whole milliseconds
            self._steps.add(math.ceil(due / STEP))

    def left(self, poll: float) -> float:
        """Seconds to the next look: until something is due, but no longer than `poll`. What is due now is forgotten."""
        now = self.clock.monotonic()
        passed = {step for step in self._steps if step * STEP <= now}
        self._steps -= passed
        if passed:
            return 0.0
        return min(poll, min(self._steps) * STEP - now) if self._steps else poll
