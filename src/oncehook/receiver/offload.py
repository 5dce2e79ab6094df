"""Stores large bodies in the payload store before their claim commits. The claim then has the object's address.

It runs after verification, so an unauthenticated sender never writes an object. If the payload store is down, a large
body goes to the database, or its sender gets 503 (`payload_fallback`). Small bodies are passed on as they are.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import IntakeFull, StoreUnavailable, Unavailable
from oncehook.objects.payload_objects import WRITE_SECONDS
from oncehook.objects.reference import ObjectStoreUnavailable
from oncehook.observability import signals
from oncehook.receiver.claim import ClaimStep, Waiter, new_waiter
from oncehook.store.store import Store

WRITES = 8
"""How many bodies of one delivery are written at the same time."""


class OffloadingClaims:
    """Implements `ClaimStep` around another one: claims with large bodies get objects."""

    def __init__(self, claims: ClaimStep, store: Store, *, threshold: int, limit_bytes: int, rejects: bool) -> None:
        self.claims = claims
        self._store = store
        self._threshold = threshold
        self._limit_bytes = limit_bytes
        self._rejects = rejects
        self._bytes = 0  # of bodies that are being written
        self._problem = f"it did not answer within {WRITE_SECONDS:g} s"  # the last one, for the log
        self._tasks: set[asyncio.Task[list[Claimed]]] = set()

    def claim(self, claims: Sequence[Claim]) -> Coroutine[Any, Any, list[Claimed]]:
        """Return the results of claims once they are durable. Claims without a large body cost nothing more."""
        for claim in claims:
            if len(claim.body) > self._threshold:
                return self._claim_in_task(claims)
        return self.claims.claim(claims)

    async def drain(self) -> None:
        """Wait until every claim with a large body is committed or has failed."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _claim_in_task(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Claim in a task, which continues if the client disconnects. The caller may run without a task itself."""
        loop = asyncio.get_running_loop()
        waiter: Waiter[list[Claimed]] = new_waiter(loop)
        task = loop.create_task(self._offload_and_claim(claims))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_resume, waiter))
        return await waiter

    async def _offload_and_claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        size = sum(len(claim.body) for claim in claims)
        if self._bytes and self._bytes + size > self._limit_bytes:
            raise IntakeFull("the intake is full", retry_after=2)
        self._bytes += size
        try:
            claims = await self._offload(claims)
        finally:
            self._bytes -= size
        return await self.claims.claim(claims)

    async def _offload(self, claims: Sequence[Claim]) -> list[Claim]:
        """Write the large bodies of events that are not recorded yet, and return the claims with their addresses."""
        large = [claim for claim in claims if len(claim.body) > self._threshold]
        addresses = {id(claim): self._store.objects.address(claim.body) for claim in large}
        reserved = await self._store.payload_objects.reserve([(addresses[id(claim)], claim) for claim in large])
        new = {addresses[id(claim)]: claim.body for claim in large if addresses[id(claim)] in reserved}
        written = await self._write(new)
        if len(written) < len(new):
            self._report(large[0].source, len(new) - len(written))
        return [
            replace(claim, body=b"", object=address)
            if (address := addresses.get(id(claim))) is not None and address in written
            else claim
            for claim in claims
        ]

    async def _write(self, bodies: dict[str, bytes]) -> set[str]:
        """Write bodies within WRITE_SECONDS in total, and return the addresses of those that are durable."""
        slots = asyncio.Semaphore(WRITES)
        tasks = {
            asyncio.create_task(self._write_one(slots, address, body)): address for address, body in bodies.items()
        }
        if not tasks:
            return set()
        done, late = await asyncio.wait(tasks, timeout=WRITE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return {tasks[task] for task in done if task.result()}

    async def _write_one(self, slots: asyncio.Semaphore, address: str, body: bytes) -> bool:
        try:
            async with slots:
                await self._store.objects.write(address, body)
        except ObjectStoreUnavailable as error:
            self._problem = str(error)
            return False
        return True

    def _report(self, source: str, count: int) -> None:
        if self._rejects:
            raise Unavailable(f"the payload store: {self._problem}", retry_after=10)
        signals.emit("payload_stored_in_database", source=source, count=count, detail=self._problem)


def _resume(waiter: Waiter[list[Claimed]], task: "asyncio.Task[list[Claimed]]") -> None:
    """Give the result of a task to the delivery that waits for it, unless that was cancelled."""
    error = None if task.cancelled() else task.exception()
    if waiter.done():
        return
    if task.cancelled():
        waiter.set_exception(StoreUnavailable("the inbox is stopping"))
    elif error is None:
        waiter.set_result(task.result())
    else:
        waiter.set_exception(error if isinstance(error, Unavailable) else StoreUnavailable(f"a bug: {error!r}"))
