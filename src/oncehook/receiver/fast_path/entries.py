"""Remembered receipts: which events are committed, by source, tenant and event id."""

from collections.abc import Sequence

import msgspec

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim, Claimed
from oncehook.model.states import State
from oncehook.store.fast_path import FastPathState

TTL = 3600
"""Seconds for which a receipt is remembered."""

ENTRY_BYTES = 500
"""The memory of an entry and its key, apart from the texts of the key. Measured with `tracemalloc`: 460 bytes."""

FINISHED = (State.PROCESSED, State.IGNORED, State.FAILED)

Key = tuple[str, str, str]  # source, tenant, event id


class Entry(msgspec.Struct, frozen=True):
    """A receipt that was committed."""

    receipt: int
    fingerprint: bytes
    status: State = State.RECEIVED  # when it was remembered


def key_of(claim: Claim) -> Key:
    return claim.source, claim.tenant, claim.event_id


def entry_of(claim: Claim, claimed: Claimed) -> Entry | None:
    """Return the entry that a claim leaves, or None if a later delivery of its event may need the database.

    An inline event is a duplicate only when it is finished. If the claim had unique keys, the receipt may have another
    event id, and a delivery with this id and other keys would be new.
    """
    if not claimed.receipt:
        return None  # it is in the spool
    if claimed.fresh:
        if claimed.status is State.PROCESSING:
            return None
    elif claim.keys or claimed.status not in FINISHED:
        return None
    return Entry(claimed.receipt, claimed.stored_fingerprint, claimed.status)


class RememberedReceipts:
    """The receipts that this process remembers, least recently used first, up to `limit_bytes`.

    `state` is that of the last query. All entries are of its namespace.
    """

    def __init__(self, limit_bytes: int, state: FastPathState, clock: Clock = SYSTEM) -> None:
        self.state = state
        self._limit = limit_bytes
        self._clock = clock
        self._entries: dict[Key, tuple[Entry, float]] = {}
        self.bytes = 0
        self.greatest = 0  # the greatest receipt number that was remembered in this namespace

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, claims: Sequence[Claim]) -> list[Entry] | None:
        """Return the entry of each claim, or None if one is missing."""
        if not claims:
            return None
        found = []
        for claim in claims:
            entry = self._get((claim.source, claim.tenant, claim.event_id))
            if entry is None:
                return None
            found.append(entry)
        return found

    def _get(self, key: Key) -> Entry | None:
        stored = self._entries.pop(key, None)
        if stored is None:
            return None
        if self._clock.monotonic() >= stored[1]:
            self.bytes -= _size(key)
            return None
        self._entries[key] = stored  # now the most recently used
        return stored[0]

    def put(self, key: Key, entry: Entry) -> None:
        """Remember a receipt for TTL seconds."""
        if self._entries.pop(key, None) is None:
            self.bytes += _size(key)
        self._entries[key] = entry, self._clock.monotonic() + TTL
        self.greatest = max(self.greatest, entry.receipt)
        while self.bytes > self._limit:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self.bytes -= _size(oldest)

    def use(self, state: FastPathState) -> bool:
        """Take over the state of a query. Returns whether its namespace is new: then all entries are gone."""
        is_new = state.namespace != self.state.namespace
        self.state = state
        if is_new:
            self.forget()
            self.greatest = 0
        return is_new

    def forget(self) -> None:
        """Forget all receipts."""
        self._entries.clear()
        self.bytes = 0


def _size(key: Key) -> int:
    return ENTRY_BYTES + len(key[1]) + len(key[2])
