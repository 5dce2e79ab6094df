"""Serial keys: at most one receipt of a key is processed at a time, in the order of arrival.

Different keys run concurrently. A scan continues at the key where the last one ended, so neither a key with many
waiting receipts nor many blocked keys can starve another key. Its cost depends on the number of keys it visits, not on
the number of waiting receipts.
"""

import json
from collections.abc import Callable, Sequence

from oncehook.concurrency.clock import Clock
from oncehook.model.lease import Leased

Key = tuple[str, str]
"""(source, serial key). The same text in another source is another key."""

START: Key = ("", "")
MAX_KEYS = 1000
"""How many keys one scan visits at most. The next scan continues from there."""

REFRESH_SECONDS = 1.0
"""A store without serial keys checks for new ones at this interval, in seconds, while it has other work."""


def serial_key_of(leased: Leased) -> Key:
    return leased.source, leased.serial_key or ""


class KeyRotation:
    """Where the next scan begins, and how a lease is shared between receipts with and without a key.

    `key_of` is the key of a leased receipt: its serial key, or its tenant.
    """

    def __init__(self, clock: Clock, key_of: Callable[[Leased], Key] = serial_key_of) -> None:
        self.clock = clock
        self.key_of = key_of
        self.after = START
        self._scanned_at = clock.monotonic() - REFRESH_SECONDS
        self._has_keys = False
        self._odd = 0

    def share(self, limit: int) -> int:
        """Return how many of `limit` receipts to lease by key first: half, or 0 if there are no keys."""
        if not self._has_keys and self.clock.monotonic() - self._scanned_at < REFRESH_SECONDS:
            return 0
        self._odd ^= 1  # a limit of 1 alternates between 0 and 1
        return (limit + self._odd) // 2

    def begin(self) -> "KeyScan":
        self._scanned_at, self._has_keys = self.clock.monotonic(), False
        return KeyScan(self)


class KeyScan:
    """One scan over the keys: from the end of the last scan, then from the start, until enough receipts are leased."""

    def __init__(self, rotation: KeyRotation) -> None:
        self.rotation = rotation
        self.leased: list[Leased] = []
        self._passes = 1 if rotation.after == START else 2
        self._remaining = MAX_KEYS

    def is_unfinished(self, limit: int) -> bool:
        return self._passes > 0 and self._remaining > 0 and len(self.leased) < limit

    @property
    def is_cut_off(self) -> bool:
        """Whether the scan ended because it visited MAX_KEYS keys, and leased less than it could."""
        return self._passes > 0 and self._remaining <= 0

    def batch_size(self, limit: int) -> int:
        return 2 * (limit - len(self.leased)) + 16

    def advance(self, keys: Sequence[Key], size: int, leased: Sequence[Leased], limit: int) -> None:
        """Record the keys of a batch of `size` and the receipts that were leased."""
        self.leased += leased
        self._remaining -= len(keys)
        self.rotation._has_keys |= bool(keys)
        if leased and len(self.leased) >= limit:
            self.rotation.after = max(map(self.rotation.key_of, leased))
        elif len(keys) < size:
            self.rotation.after = START
            self._passes -= 1
        else:
            self.rotation.after = keys[-1]


def keys_json(keys: Sequence[Key], may_lease: Callable[[str], bool]) -> str:
    """Encode keys for a statement, without those of sources that must not be leased."""
    return json.dumps([{"source": source, "key": key} for source, key in keys if may_lease(source)])
