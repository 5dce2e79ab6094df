"""Remembered receipts that several processes share in a cache such as Redis.

Keys and values are signed with a secret that is in the database, and a key contains the namespace. So a value counts
only if a process of this database wrote it for this event, whatever the cache returns. Neither contains an event id.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Protocol

from oncehook.concurrency.batches import Batches
from oncehook.model.claim import Claim
from oncehook.receiver.claim import Waiter, new_waiter
from oncehook.receiver.fast_path.entries import TTL, Entry
from oncehook.store.fast_path import FastPathState

MAX_WRITES = 10_000
"""How many entries may wait to be written. Further ones are not shared."""

FINGERPRINT_BYTES = 32
MAC_BYTES = 16
VALUE_BYTES = 8 + FINGERPRINT_BYTES + MAC_BYTES

Values = list[bytes | None]


class Cache(Protocol):
    """A cache outside the process, which may lose, keep or change anything."""

    @property
    def is_available(self) -> bool:
        """Whether it answered last time. If not, deliveries do not wait for it."""

    async def get(self, keys: Sequence[bytes]) -> Values:
        """Return the value of each key. Never raises: without an answer in time, every value is None."""

    async def put(self, values: Mapping[bytes, bytes], seconds: int) -> None:
        """Store values for some seconds. Never raises."""


class SharedReceipts:
    """Implements `SharedEntries`. Lookups and writes that arrive during a request share the next one."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lookups: Batches[_Lookup] = Batches(self._look_up)
        self._writes: Batches[tuple[bytes, bytes]] = Batches(self._write)

    async def find(self, claims: Sequence[Claim], state: FastPathState) -> list[Entry] | None:
        if not self._cache.is_available:
            return None
        keys = [key_of(claim, state) for claim in claims]
        lookup = _Lookup(keys, new_waiter(asyncio.get_running_loop()))
        self._lookups.add(lookup)
        values = await lookup.waiter
        entries = [decode(key, value, state) for key, value in zip(keys, values, strict=True)]
        known = [entry for entry in entries if entry is not None]
        return known if len(known) == len(claims) else None

    def put(self, claim: Claim, entry: Entry, state: FastPathState) -> None:
        if self._cache.is_available and len(self._writes) < MAX_WRITES:
            key = key_of(claim, state)
            self._writes.add((key, encode(key, entry, state)))

    async def drain(self) -> None:
        """Wait until everything is written."""
        await self._lookups.drain()
        await self._writes.drain()

    async def _look_up(self, lookups: "list[_Lookup]") -> None:
        values = await self._cache.get([key for lookup in lookups for key in lookup.keys])
        start = 0
        for lookup in lookups:
            end = start + len(lookup.keys)
            if not lookup.waiter.done():
                lookup.waiter.set_result(values[start:end])
            start = end

    async def _write(self, values: list[tuple[bytes, bytes]]) -> None:
        await self._cache.put(dict(values), TTL)


class _Lookup:
    """The keys of one delivery. It waits for their values."""

    __slots__ = ("keys", "waiter")

    def __init__(self, keys: Sequence[bytes], waiter: Waiter[Values]) -> None:
        self.keys = keys
        self.waiter = waiter


def key_of(claim: Claim, state: FastPathState) -> bytes:
    """Return the key of an event: its source, tenant and id, and the namespace of the database."""
    parts = (claim.source, claim.tenant, claim.event_id)
    text = "\0".join(parts).encode("utf-8", "surrogatepass")  # no part contains a NUL
    digest = hashlib.blake2b(state.namespace + text, key=state.secret, digest_size=20, person=b"key")
    return b"oncehook:" + digest.hexdigest().encode()


def encode(key: bytes, entry: Entry, state: FastPathState) -> bytes:
    """Return the value of an entry: its receipt, its fingerprint, and a signature that includes the key."""
    content = entry.receipt.to_bytes(8, "big") + entry.fingerprint
    return content + _sign(key, content, state)


def decode(key: bytes, value: object, state: FastPathState) -> Entry | None:
    """Return the entry of a value, or None unless `encode` made the value for this key and database."""
    if not isinstance(value, bytes) or len(value) != VALUE_BYTES:
        return None
    content, signature = value[:-MAC_BYTES], value[-MAC_BYTES:]
    if not hmac.compare_digest(signature, _sign(key, content, state)):
        return None
    return Entry(int.from_bytes(content[:8], "big"), content[8:])


def _sign(key: bytes, content: bytes, state: FastPathState) -> bytes:
    return hashlib.blake2b(key + content, key=state.secret, digest_size=MAC_BYTES, person=b"value").digest()
