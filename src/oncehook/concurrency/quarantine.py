"""The turn of what was under way when its process died: it runs alone, so that it may take its process along, but no
neighbour. A worker gives such turns to receipts, the relay to effects.

Its turn is when nothing else is to do, and now and then in any case. Then nothing more is started, and what runs has a
moment to end; if it does not, the turn is put off and work goes on. Each time that happens the next moment is twice
as long, and so is the time until then: others have ten parts in eleven of a worker's time, and however long they take,
the turn comes.
"""

from typing import Generic, TypeVar

from oncehook.concurrency.clock import Clock

Held = TypeVar("Held")

EVERY = 10.0
"""Seconds between turns, however much else there is to do."""

FIRST_PATIENCE = 1.0


class Alone(Generic[Held]):
    """Whose turn it is, if it is anybody's."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.leased: Held | None = None  # nothing else is started
        self.is_running = False
        self._turn = 0.0
        self._patience = FIRST_PATIENCE
        self._since = 0.0  # when it was taken, then when it began

    @property
    def is_due(self) -> bool:
        """Whether one is to be looked for, although there may be other work."""
        return self.clock.monotonic() >= self._turn

    @property
    def left(self) -> float | None:
        """For how many seconds what runs may still take to end; None if nobody waits for that."""
        if self.leased is None or self.is_running:
            return None
        return self._since + self._patience - self.clock.monotonic()

    def take(self, leased: Held | None) -> None:
        """What was found; None: nobody waits for a turn."""
        self.leased, self._since = leased, self.clock.monotonic()
        if leased is None:
            self._turn = self._since + EVERY

    def begin(self) -> None:
        self.is_running, self._since = True, self.clock.monotonic()

    def end(self) -> None:
        """Others have as long as it took, then the next one may follow."""
        now = self.clock.monotonic()
        self._turn, self._patience = now + (now - self._since), FIRST_PATIENCE
        self.leased, self.is_running = None, False

    def put_off(self) -> Held | None:
        """What is held and does not run, which is now the caller's to give back."""
        if self.is_running:
            return None
        leased, self.leased = self.leased, None
        self._turn = self.clock.monotonic() + EVERY * self._patience / FIRST_PATIENCE
        self._patience *= 2
        return leased
