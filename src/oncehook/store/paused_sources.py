"""Paused sources and consumers, as one process knows them.

The receiver accepts and acks the events of a paused source, and no worker leases them until the source is resumed. The
pauses are in the database, so they hold in every process and after a restart. A worker releases the receipts of a newly
paused source that it has not started within a second. Running handlers finish.
"""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.store.protocols import PauseStore

MAX_AGE = 1.0
"""For how many seconds the paused sources are cached."""


class PausedSources:
    """The paused sources and consumers, queried at most once a second."""

    def __init__(self, pauses: PauseStore, clock: Clock = SYSTEM) -> None:
        self.pauses = pauses
        self.clock = clock
        self.consumers: frozenset[str] = frozenset()  # as of the last call of `sources`
        self._sources: frozenset[str] = frozenset()
        self._queried_at = float("-inf")

    def expire(self) -> None:
        """Query the database at the next call."""
        self._queried_at = float("-inf")

    async def sources(self) -> frozenset[str]:
        if self.clock.monotonic() - self._queried_at >= MAX_AGE:
            rows = await self.pauses.active()
            self._sources = frozenset(row.source for row in rows if row.source)
            self.consumers = frozenset(row.consumer for row in rows if row.consumer)
            self._queried_at = self.clock.monotonic()
        return self._sources
