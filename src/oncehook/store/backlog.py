"""Lets a worker skip a backlog that it must not lease: paused sources, and events that other processes handle.

A worker whose sources have tenants leases their events in turns, so here it skips them too.

The statements that lease exclude both. Once a pause is committed, no receipt of its source is leased. This module keeps
that cheap. A worker leases in the order of due times, so a long backlog at the head of that order would be read again
by every lease. The worker therefore searches now and then, in windows, for the due time of the first receipt that it
may lease, and leases from that time on. A receipt that becomes due before that time waits for the next search.
"""

from collections.abc import Awaitable, Callable

from oncehook.concurrency.clock import Clock
from oncehook.model.patterns import Handled
from oncehook.model.rows import DueWindow
from oncehook.store.serial import Key

REFRESH_SECONDS = 1.0
SEARCH_INTERVAL_FACTOR = 20
"""After a search for the floor, the next one waits at least this many times as long as the search took."""

WINDOW = 20_000
LAST_KEY = chr(0x10FFFF) * 64
"""Greater than every serial key: keys are shorter than these 256 bytes."""

FetchWindow = Callable[[str, int], Awaitable[DueWindow]]


class Backlog:
    """The paused sources and the floor of one process, at most a second old."""

    def __init__(self, clock: Clock, lowest: str) -> None:
        self.clock = clock
        self.sources: frozenset[str] = frozenset()
        self.floor = self._lowest = lowest  # no receipt that this process may lease is due before this time
        self._next_refresh = self._next_search = float("-inf")
        self._handled: Handled | None = None
        self._had_to_skip = False

    async def refresh(
        self,
        sources: Callable[[], Awaitable[list[str]]],
        window: FetchWindow,
        handled: Handled | None = None,
        *,
        has_tenants: bool = False,
    ) -> None:
        """Refresh the paused sources once a second, and the floor if needed.

        `handled` has the types that this process handles; None means all types.
        """
        began = self.clock.monotonic()
        if began < self._next_refresh:
            return
        paused = frozenset(await sources())
        must_skip = bool(paused) or has_tenants or (handled is not None and handled.is_shared)
        before = self.sources, self._handled, self._had_to_skip
        changed = (paused, handled, must_skip) != before  # receipts due before the floor may now be leased
        if changed or (must_skip and began >= self._next_search):
            self.floor = await self._find_floor(window) if must_skip else self._lowest
            took = self.clock.monotonic() - began
            self._next_search = began + took * (1 + SEARCH_INTERVAL_FACTOR)
        self.sources, self._handled, self._had_to_skip = paused, handled, must_skip
        self._next_refresh = self.clock.monotonic() + REFRESH_SECONDS

    def invalidate(self) -> None:
        """Make the next lease refresh, because this process changed a pause."""
        self._next_refresh = self._next_search = float("-inf")

    async def _find_floor(self, window: FetchWindow) -> str:
        after = self._lowest
        while True:
            row = await window(after, WINDOW)
            if row.first is not None:
                return min(row.first, row.lately)
            if row.number < WINDOW or row.last is None:
                return row.lately
            if row.last == after:  # all receipts of this window are due at the same time
                return after
            after = row.last

    def skip_source(self, after: Key) -> Key:
        """Return the serial key to continue after. Skip the keys of a source that this process must not lease."""
        return (after[0], LAST_KEY) if after[0] and not self.may_lease(after[0]) else after

    def may_lease(self, source: str) -> bool:
        """Whether this process may lease receipts of a source."""
        return source not in self.sources and (self._handled is None or source in self._handled.sources)
