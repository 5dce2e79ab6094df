"""The readiness check: whether an event could be committed now, or published to a queue."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from oncehook.model.errors import Unavailable

if TYPE_CHECKING:
    from oncehook.receiver.spool.directory import SpoolDirectory
    from oncehook.runtime import Runtime

READY_SECONDS = 1.8


class Spool(Protocol):
    """Accepts deliveries without the database."""

    directory: "SpoolDirectory"

    @property
    def accepts(self) -> bool: ...


class Readiness:
    """Checks that the store accepts a write. Concurrent requests share one check.

    With shards, the inbox is ready if any shard is: `unavailable` names the others.
    """

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self.spool: Spool | None = None
        self.unavailable: dict[str, str] = {}  # by shard: why it could not commit an event at the last check
        self._checking: asyncio.Task[None] | None = None
        self.is_draining = False
        self.alternative: Callable[[], Awaitable[None]] | None = None
        """Returns if deliveries can be accepted without the database, else raises Unavailable."""

    def reset(self) -> None:
        """Drop a check that started in an earlier event loop, because it never ends."""
        self._checking, self.is_draining = None, False

    def drain(self) -> None:
        """Report from now on that the process is not ready. A load balancer then sends to other processes."""
        self.is_draining = True

    async def check_delivery(self) -> bool:
        """Return if a delivery could be accepted, else raise Unavailable. Returns whether only by the spool."""
        try:
            await self.check()
        except Unavailable:
            if self.is_draining or self.spool is None or not self.spool.accepts:
                raise
            return True
        return False

    def spooled_events(self) -> int | None:
        """Return how many events are in the spool, or None if there is no spool."""
        return None if self.spool is None else self.spool.directory.events()

    async def check(self) -> None:
        """Return if an event could be accepted now, else raise Unavailable. Takes at most twice READY_SECONDS."""
        if self.is_draining:
            raise Unavailable("the process is stopping")
        try:
            await self._check_databases()
        except Unavailable:
            if self.alternative is None:
                raise
            await asyncio.wait_for(self.alternative(), READY_SECONDS)

    async def _check_databases(self) -> None:
        shards = self.runtime.shards
        if shards is None:
            await self._check_store()
            return
        own, self.unavailable = await asyncio.gather(self._try_store(), shards.unavailable())
        if own is not None:
            self.unavailable = {"main": own.detail} | self.unavailable
            if len(self.unavailable) > len(shards.children):
                raise own

    async def _try_store(self) -> Unavailable | None:
        try:
            await self._check_store()
        except Unavailable as error:
            return error
        return None

    async def _check_store(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self.runtime.store.ping())
            self._checking.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait([self._checking], timeout=READY_SECONDS)
        if not done:
            raise Unavailable("the database did not accept a write in time")
        self._checking.result()
