"""Quarantine: work whose process died is retried in isolation, so that it cannot crash other work with it.

The worker quarantines receipts, and the relay quarantines effects. A quarantined item is due when there is no other
work, and periodically even if there is. It then waits until the running work has finished; nothing else is started. If
the running work does not finish within `patience`, the quarantine is postponed and other work continues. Each
postponement doubles the patience and the time until the next try. So other work gets ten elevenths of the time, and
the quarantined item runs eventually, however long the other work takes.
"""

from typing import Generic, TypeVar

from oncehook.concurrency.clock import Clock

Item = TypeVar("Item")

INTERVAL = 10.0
"""Seconds between two quarantined items while there is other work."""

FIRST_PATIENCE = 1.0
"""Seconds that the first try waits for the running work to finish."""


class Quarantine(Generic[Item]):
    """The quarantined item of a worker or relay, if it has one, and when the next may start."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.item: Item | None = None  # while set, no other work is started
        self.is_running = False
        self._next_at = 0.0
        self._patience = FIRST_PATIENCE
        self._since = 0.0  # when the item was held, or when it started

    @property
    def is_due(self) -> bool:
        """Whether the worker should look for a quarantined item even if there is other work."""
        return self.clock.monotonic() >= self._next_at

    @property
    def patience_left(self) -> float | None:
        """Seconds that the running work may still take. None if no item waits for it."""
        if self.item is None or self.is_running:
            return None
        return self._since + self._patience - self.clock.monotonic()

    def hold(self, item: Item | None) -> None:
        """Wait with this item until it may start. None means that no item is due."""
        self.item, self._since = item, self.clock.monotonic()
        if item is None:
            self._next_at = self._since + INTERVAL

    def start(self) -> None:
        self.is_running, self._since = True, self.clock.monotonic()

    def finish(self) -> None:
        """End the item. Other work then gets as much time as the item took."""
        now = self.clock.monotonic()
        self._next_at, self._patience = now + (now - self._since), FIRST_PATIENCE
        self.item, self.is_running = None, False

    def postpone(self) -> Item | None:
        """Stop waiting, and return the item, which the caller must release. None if it runs or there is none."""
        if self.is_running:
            return None
        item, self.item = self.item, None
        self._next_at = self.clock.monotonic() + INTERVAL * self._patience / FIRST_PATIENCE
        self._patience *= 2
        return item
