"""Serial keys: one receipt of a key at a time, in order of arrival; keys side by side, each in its turn.

A look goes round the keys from where the last one ended, so that neither a key with many waiting receipts nor many
blocked keys keep another from its turn. A look costs by the keys that it passes, never by how many receipts wait.
"""

import json
from collections.abc import Callable, Sequence

from oncehook.concurrency.clock import Clock
from oncehook.model.lease import Leased

Key = tuple[str, str]
"""(source, serial key). The same text at another source is another key."""

START: Key = ("", "")
MOST_KEYS = 1000
"""How many keys one look passes at most; the next look goes on from there."""

LOOK_SECONDS = 1.0
"""How long a store that has had no serial keys goes on without looking for some, while it has other work."""


class Rounds:
    """Where the next look begins, and how a worker's room is shared between receipts with a key and without."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.after = START
        self._looked = clock.monotonic() - LOOK_SECONDS
        self._seen = False
        self._odd = 0

    def share(self, limit: int) -> int:
        """How much of the room to offer to serial keys before the rest: half, or nothing where there are none."""
        if not self._seen and self.clock.monotonic() - self._looked < LOOK_SECONDS:
            return 0
        self._odd ^= 1  # of a room of one, they have it every other time
        return (limit + self._odd) // 2

    def begin(self) -> "Look":
        self._looked, self._seen = self.clock.monotonic(), False
        return Look(self)


class Look:
    """One look: on from where the last one ended, and once more from the start, until there is enough."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.leased: list[Leased] = []
        self._passes = 1 if rounds.after == START else 2
        self._left = MOST_KEYS

    def goes_on(self, limit: int) -> bool:
        return self._passes > 0 and self._left > 0 and len(self.leased) < limit

    def keys_wanted(self, limit: int) -> int:
        return 2 * (limit - len(self.leased)) + 16

    def passed(self, keys: Sequence[Key], wanted: int, leased: Sequence[Leased], limit: int) -> None:
        """Note which keys were looked at, and what was leased of them."""
        self.leased += leased
        self._left -= len(keys)
        self.rounds._seen |= bool(keys)
        if leased and len(self.leased) >= limit:
            self.rounds.after = max((one.source, one.serial_key or "") for one in leased)
        elif len(keys) < wanted:
            self.rounds.after = START
            self._passes -= 1
        else:
            self.rounds.after = keys[-1]


def told_of(keys: Sequence[Key], may_lease: Callable[[str], bool]) -> str:
    """The keys as a statement takes them, without those of sources that must not be leased."""
    return json.dumps([{"source": source, "key": key} for source, key in keys if may_lease(source)])
