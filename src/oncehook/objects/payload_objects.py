"""Writes, reads and deletes payload objects, within limits: a time, a number of slots and a circuit breaker.

A store that is down delays nothing else. After consecutive failures the breaker opens, and calls fail immediately.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.http_client.circuit_breaker import CircuitBreaker
from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Postpone
from oncehook.objects.reference import (
    ObjectMissing,
    ObjectStoreUnavailable,
    check_bytes,
    check_store,
    day_folder,
    new_address,
    split_address,
)

WRITE_SECONDS = 5.0
"""For how many seconds one object may be written. Its sender waits."""

READ_SECONDS = 15.0
"""For how many seconds one object may be read or deleted."""

DELETES = 8
"""How many objects are deleted at the same time, so that slots for writing and reading stay free."""

SLOTS = 32
"""How many objects of one store a process writes, reads and deletes at the same time."""


class ObjectBackend(Protocol):
    """One payload store. Keys are relative to its address. Raises ObjectStoreUnavailable or ObjectMissing."""

    async def check(self) -> None:
        """Raise ObjectStoreUnavailable if the store cannot be used."""

    async def write(self, key: str, data: bytes) -> None:
        """Write a new object. It is durable when this returns."""

    async def read(self, key: str) -> bytes:
        """Return the bytes of an object. Raises ObjectMissing only if the store says that it does not exist."""

    async def delete(self, key: str) -> None:
        """Delete an object. Does nothing if it does not exist."""

    async def close(self) -> None:
        """Release connections."""


class PayloadObjects:
    """The payload stores of an inbox: the configured one, and those that the addresses of stored objects name."""

    def __init__(self, store: Callable[[], str | None], clock: Clock = SYSTEM) -> None:
        self._store = store
        self._clock = clock
        self._backends: dict[str, tuple[ObjectBackend, CircuitBreaker]] = {}

    async def put(self, data: bytes, folder: str | None = None) -> str:
        """Store bytes in the configured store, and return their address. Raises ObjectStoreUnavailable."""
        address = self.address(data, folder)
        await self.write(address, data)
        return address

    def address(self, data: bytes, folder: str | None = None) -> str:
        """Return a new address in the configured store, where `write` can store these bytes."""
        store = self._store()
        if store is None:
            raise ConfigurationError("payload_store is not set")
        return new_address(check_store(store), data, folder or day_folder(self._clock.datetime()))

    async def check(self) -> None:
        """Raise ConfigurationError if the configured store cannot be used by this process."""
        store = self._store()
        if store is not None:
            backend, _ = self._backend(check_store(store))
            await backend.check()

    async def write(self, address: str, data: bytes) -> None:
        """Write a new object. It is durable when this returns. Raises ObjectStoreUnavailable."""
        async with self._call(address, WRITE_SECONDS) as (backend, key):
            await backend.write(key, data)

    async def get(self, address: str) -> bytes:
        """Return the bytes of an object, which have the SHA-256 of its address.

        Raises ObjectMissing if the object does not exist or is damaged, and ObjectStoreUnavailable if its store does
        not answer.
        """
        async with self._call(address, READ_SECONDS) as (backend, key):
            data = await backend.read(key)
        return check_bytes(address, data)

    async def delete(self, addresses: Iterable[str]) -> list[str]:
        """Delete objects, and return the addresses of those that do not exist any more."""
        slots = asyncio.Semaphore(DELETES)
        results = [(address, self._delete(address, slots)) for address in addresses]
        outcomes = await asyncio.gather(*(deleting for _, deleting in results))
        return [address for (address, _), is_deleted in zip(results, outcomes, strict=True) if is_deleted]

    async def _delete(self, address: str, slots: asyncio.Semaphore) -> bool:
        try:
            async with slots, self._call(address, READ_SECONDS) as (backend, key):
                await backend.delete(key)
        except ObjectMissing:
            return True
        except ObjectStoreUnavailable:
            return False
        return True

    async def close(self) -> None:
        """Release the connections of all stores. The next call opens them again."""
        backends, self._backends = self._backends, {}
        for backend, _ in backends.values():
            await backend.close()

    @asynccontextmanager
    async def _call(self, address: str, seconds: float) -> AsyncIterator[tuple[ObjectBackend, str]]:
        store, key = split_address(address)
        backend, breaker = self._backend(store)
        try:
            async with breaker.call() as call:
                try:
                    async with asyncio.timeout(seconds):
                        yield backend, key
                except TimeoutError:
                    call.failed()
                    raise ObjectStoreUnavailable(f"{store} did not answer within {seconds:g} s") from None
                except ObjectStoreUnavailable:
                    call.failed()
                    raise
                except ObjectMissing:
                    call.succeeded()
                    raise
                call.succeeded()
        except Postpone as error:
            raise ObjectStoreUnavailable(str(error), retry_after=error.after) from None

    def _backend(self, store: str) -> tuple[ObjectBackend, CircuitBreaker]:
        if store not in self._backends:
            self._backends[store] = _make_backend(store), CircuitBreaker(store, SLOTS, self._clock)
        return self._backends[store]


def _make_backend(store: str) -> ObjectBackend:
    if store.startswith("file:"):
        from oncehook.objects.directory import DirectoryObjects

        return DirectoryObjects(store)
    from oncehook.objects.s3 import S3Objects

    return S3Objects(store)
