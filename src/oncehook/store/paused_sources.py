"""Pausing a source: its events are accepted and acked, and wait; nobody works on them until it is resumed.

The database has which sources are paused, and the statement that leases leaves them out, in every process and after a
restart. What a worker holds and has not started goes back within a second; what runs ends.
"""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.store.protocols import PauseStore

FRESH = 1.0
"""Seconds for which an answer is as good as a new one."""


class Paused:
    """The paused sources, asked for once a second at most."""

    def __init__(self, pauses: PauseStore, clock: Clock = SYSTEM) -> None:
        self.pauses = pauses
        self.clock = clock
        self._sources: frozenset[str] = frozenset()
        self._asked = float("-inf")

    async def sources(self) -> frozenset[str]:
        if self.clock.monotonic() - self._asked >= FRESH:
            self._sources = frozenset(row.source for row in await self.pauses.active())
            self._asked = self.clock.monotonic()
        return self._sources
