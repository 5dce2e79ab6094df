"""Notices that the database's clock was set back, and corrects the times that it had written before.

A process compares the database's clock with its own monotonic clock. It cannot know what happened before its start, so
it also corrects the times after that. Each process does both, and a correction that is repeated changes nothing.
"""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.observability import signals
from oncehook.store.store import Store

MIN_STEP = 1.0
"""Seconds by which the clock must go back to be noticed. Nothing waits longer than that for a smaller step."""

CORRECTIONS = 2
"""Corrections after a step. The second one finds the rows of transactions that began before the step and ended late."""


class ClockWatch:
    """Checks the clock of one database."""

    def __init__(self, store: Store, clock: Clock = SYSTEM) -> None:
        self._store = store
        self._clock = clock
        self._last: tuple[float, float] | None = None  # the database's time, and the monotonic time right after that
        self._corrections_left = CORRECTIONS

    async def check(self) -> int:
        """Correct due times if the clock was set back since the last check. Returns how many were corrected."""
        seconds = await self._measure_step()
        if seconds > MIN_STEP:
            self._corrections_left = CORRECTIONS
            signals.emit("clock_set_back", seconds=round(seconds, 3))
        if not self._corrections_left:
            return 0
        count = await self._store.due_times.correct()
        self._corrections_left -= 1
        if count:
            signals.emit("due_times_corrected", count=count)
        return count

    async def _measure_step(self) -> float:
        """By how many seconds the database's clock went back since the last check, at least."""
        before = self._clock.monotonic()
        now = (await self._store.operations.now()).timestamp()
        last, self._last = self._last, (now, self._clock.monotonic())
        return 0.0 if last is None else (before - last[1]) - (now - last[0])
