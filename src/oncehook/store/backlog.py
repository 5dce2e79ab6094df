"""What a worker must not lease, paused sources and events that other processes handle, and how to get past it.

The statements that lease leave both out by themselves, so once a pause is committed nothing of its source is leased.
This module keeps that cheap: a worker leases in the order of what is due, and a backlog that it must not touch would
stand at the head of that order and be passed over by every lease. So the worker looks now and then, in windows, for the
place where its own events begin, and leases from there. An event that comes to lie before it waits for the next look.
"""

from collections.abc import Awaitable, Callable

from oncehook.concurrency.clock import Clock
from oncehook.model.patterns import Handled
from oncehook.model.rows import DueWindow
from oncehook.store.serial import Key

LOOK_SECONDS = 1.0
SHARE = 20
"""A look for the floor is followed by so many times as long without one."""

WINDOW = 20_000
LAST_KEY = chr(0x10FFFF) * 64
"""No serial key is greater: they are shorter than these 256 bytes."""

Window = Callable[[str, int], Awaitable[DueWindow]]


class Backlog:
    """What one process knows of paused sources; a second old at most."""

    def __init__(self, clock: Clock, lowest: str) -> None:
        self.clock = clock
        self.sources: frozenset[str] = frozenset()
        self.floor = self._lowest = lowest  # nothing that may be leased is due before
        self._next_look = self._next_floor = float("-inf")
        self._handled: Handled | None = None

    async def refresh(
        self, sources: Callable[[], Awaitable[list[str]]], window: Window, handled: Handled | None = None
    ) -> None:
        """Bring it up to date, if it is time to. `handled` is what this process handles; None: everything."""
        began = self.clock.monotonic()
        if began < self._next_look:
            return
        found = frozenset(await sources())
        passes_over = bool(found) or (handled is not None and handled.is_shared)
        changed = (found, handled) != (self.sources, self._handled)
        if changed or (passes_over and began >= self._next_floor):
            self.floor = await self._find_floor(window) if passes_over else self._lowest
            took = self.clock.monotonic() - began
            self._next_floor = began + took * (1 + SHARE)
        self.sources, self._handled = found, handled
        self._next_look = self.clock.monotonic() + LOOK_SECONDS

    def forget(self) -> None:
        """Something was changed by this process: the next lease looks."""
        self._next_look = self._next_floor = float("-inf")

    async def _find_floor(self, window: Window) -> str:
        after = self._lowest
        while True:
            row = await window(after, WINDOW)
            if row.first is not None:
                return min(row.first, row.lately)
            if row.number < WINDOW or row.last is None:
                return row.lately
            if row.last == after:  # a window of receipts of one moment
                return after
            after = row.last

    def past(self, after: Key) -> Key:
        """Where to go on among serial keys: behind all of a source that is paused or not handled here."""
        return (after[0], LAST_KEY) if after[0] and not self.may_lease(after[0]) else after

    def may_lease(self, source: str) -> bool:
        """Whether this process may have something to do for a source."""
        return source not in self.sources and (self._handled is None or source in self._handled.sources)
