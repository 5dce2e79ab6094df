"""lease → process: what was acked is leased before it is needed, and worked off, many at once."""

import asyncio
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from oncehook.concurrency.quarantine import Alone
from oncehook.concurrency.stopping import end
from oncehook.handlers.registry import Handler
from oncehook.model.errors import Unavailable
from oncehook.model.lease import Held, Leased
from oncehook.model.patterns import Handled
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.paused_sources import PausedSources
from oncehook.store.store import Store
from oncehook.worker.process import Processor, nobody

MOMENT, MOST_AHEAD = 0.05, 8
"""Leases that follow each other within so many seconds take more at once, up to so many for each place."""


class Worker:
    """Leases receipts and has them processed, `concurrency` at once."""

    def __init__(
        self,
        store: Store,
        processor: Processor,
        *,
        concurrency: int = 16,
        lease_seconds: float = 30.0,
        poll: float = 1.0,
        skip_failed: Collection[str] = (),
        announce: Callable[[], None] | None = None,
        handled: Callable[[], Handled] | None = None,
    ) -> None:
        self.store = store
        self.processor = processor
        self.concurrency = concurrency
        self.lease_seconds = lease_seconds
        self.poll = poll  # seconds between looks when nothing woke it: a wake-up is a hint, never the only way
        self.skip_failed = skip_failed  # sources whose dead letters do not block their serial keys
        self.announce = announce or nobody
        self.handled = handled or (lambda: processor.handlers.handled)  # what this process handles: it leases no more
        # Unique: a process that follows in a container can have the host name and process id of the one before.
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._ready: deque[Leased] = deque()
        self._leased_at, self._was_full = 0.0, False  # the last lease, and whether it found as many as it asked for
        self._stray_until = 0.0  # until then receipts may be leased to us whose lease we never heard of
        self._pace = 1  # how many are leased ahead for each place
        self._enough = 0  # with more than so many ready, no lease is needed
        self._alone: Alone[Leased] = Alone(processor.clock)
        self._paused = PausedSources(store.pauses, processor.clock)
        self._known_paused: frozenset[str] = frozenset()
        self._running: set[asyncio.Task[Any]] = set()
        self._attention = asyncio.Event()  # something may be due, or a place is free
        self._stop_asked = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.store.process.worker = self.name
        self._feeder = asyncio.create_task(self._feed())

    def wake(self) -> None:
        """Something may be due."""
        self._attention.set()

    async def stop(self, grace: float = 30.0) -> None:
        """Lease no more, let running handlers finish within `grace`, give back what was not started."""
        self._stop_asked.set()
        self._attention.set()
        await asyncio.gather(self._give_back(), end(self._running, grace))

    async def _give_back(self) -> None:
        if self._feeder is not None:
            await asyncio.gather(self._feeder, return_exceptions=True)
        leased = [*self._ready, *filter(None, [self._alone.put_off()])]
        self._ready.clear()
        await self._release([one.held for one in leased])

    async def _give_back_paused(self) -> None:
        """What is held of a source that was paused since, and was not started, waits with the others of it."""
        try:
            paused = await self._paused.sources()
        except Unavailable:
            return  # leasing says so
        for name in sorted(paused - self._known_paused):
            signals.emit("source_paused", source=name)
        for name in sorted(self._known_paused - paused):
            signals.emit("source_resumed", source=name)
        self._known_paused = paused
        back = [one for one in self._ready if one.source in paused]
        if back:
            self._ready = deque(one for one in self._ready if one.source not in paused)
        if self._alone.leased is not None and self._alone.leased.source in paused:
            back += filter(None, [self._alone.put_off()])
        await self._release([one.held for one in back])

    async def _release(self, held: Sequence[Held]) -> None:
        for one in held:
            self.processor.heartbeat.drop(one)
        if held:
            try:
                await self.store.leases.release(held)
                self.announce()
            except Unavailable as error:
                signals.emit("release_failed", count=len(held), detail=error.detail)

    # -- feeding --------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Lease when there is room, start what is leased, and wait when nothing is due."""
        while not self._stop_asked.is_set():
            self._attention.clear()
            try:
                await self._give_back_paused()
                found = await self._lease()
                if self._stop_asked.is_set():
                    return
                self._start_ready()
            except Exception as error:
                signals.log_background_failure("worker", error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop_asked.wait(), self.poll)
                continue
            if not found or self._ready:
                reach(Checkpoint.WORKER_IDLE)
                left = self._alone.left
                try:
                    seconds = self.processor.dues.left(self.poll) if left is None else max(left, 0)
                    await asyncio.wait_for(self._attention.wait(), seconds)
                except TimeoutError:
                    pass

    async def _lease(self) -> int:
        """Lease before nothing is ready. A receipt whose worker died is taken alone, and nothing else is started."""
        left = self._alone.left
        if left is not None and left <= 0 and self._running:
            await self._release([one.held for one in filter(None, [self._alone.put_off()])])
        if self._alone.leased is not None:
            return 0
        batch = self.processor.handlers.largest_batch + 1
        ahead = max(self._ahead(), 2 * batch)
        self._enough = ahead // 2
        if len(self._ready) > self._enough:
            return 0
        free = self.concurrency - len(self._running) if batch == 1 else 0  # else they would be a batch of few
        room = ahead - len(self._ready) + free
        self._leased_at = self.processor.clock.monotonic()
        try:
            await self._release_strays()
            leased = await self._take_rescued() if self._alone.is_due else []
            if not leased:
                leased = await self._take(room)
            if not leased and not self._running and not self._ready:
                leased = await self._take_rescued()
        except Unavailable as error:
            signals.emit("worker_database_unavailable", detail=error.detail)
            self._stray_until = self._leased_at + self.lease_seconds
            return 0
        for one in leased:
            self.processor.heartbeat.keep(one.held)
        if self._alone.leased is None:
            self._ready.extend(leased)
            self._was_full = len(leased) == room
        return len(leased)

    async def _release_strays(self) -> None:
        """A lease may have been committed and its reply lost: what it took is released, and no attempt is counted.

        It is repeated until such a lease has expired: the statement may still have been under way.
        """
        if self._leased_at < self._stray_until:
            await self.store.leases.release_strays(self.name, self.processor.heartbeat.receipts)

    async def _take_rescued(self) -> list[Leased]:
        """A receipt whose last worker died."""
        taken = await self._take(1, rescued=True)
        self._alone.take(taken[0] if taken else None)
        return taken

    async def _take(self, room: int, *, rescued: bool = False) -> list[Leased]:
        handled = self.handled()
        if not handled:
            return []
        return await self.store.leases.take(
            room, self.lease_seconds, self.name, rescued=rescued, skip_failed=self.skip_failed, handled=handled
        )

    def _ahead(self) -> int:
        """How many to have ready beside those that run: what is worked off in a moment, and no more.

        A place that is free then waits for no lease, and where handlers are slow, other workers find something to do.
        """
        since = self.processor.clock.monotonic() - self._leased_at
        if since > 10 * MOMENT:
            self._pace = 1
        elif since < MOMENT and self._was_full:
            self._pace = min(2 * self._pace, MOST_AHEAD)
        return self._pace * self.concurrency

    def _start_ready(self) -> None:
        if self._alone.leased is not None:
            self._start_alone(self._alone.leased)
            return
        while self._ready and len(self._running) < self.concurrency:
            leased = self._ready.popleft()
            if self.processor.heartbeat.is_released(leased.held):  # while the loop was blocked
                self.processor.heartbeat.drop(leased.held)
                continue
            handler = self.processor.handlers.find(leased.source, leased.type)
            if handler is not None and handler.batch:
                work = self.processor.work_batch(handler, [leased, *self._take_same(handler, handler.batch - 1)])
                task: asyncio.Task[Any] = asyncio.create_task(work)
            else:
                task = asyncio.create_task(self.processor.work(leased))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _start_alone(self, leased: Leased) -> None:
        """What runs ends first, and nothing is started beside it."""
        if self._running:
            return

        def ended(task: "asyncio.Task[Any]") -> None:
            self._alone.end()
            self._ended(task)
            self._attention.set()

        task: asyncio.Task[Any] = asyncio.create_task(self.processor.work(leased))
        self._alone.begin()
        self._running.add(task)
        task.add_done_callback(ended)

    def _take_same(self, handler: Handler, most: int) -> list[Leased]:
        """Those that are ready for the same batch handler, up to so many."""
        find = self.processor.handlers.find
        same = [one for one in self._ready if find(one.source, one.type) is handler][:most]
        taken = {one.receipt for one in same}
        self._ready = deque(one for one in self._ready if one.receipt not in taken)
        return same

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not self._stop_asked.is_set():
            self._start_ready()
        if len(self._ready) <= self._enough or not self._running:
            self._attention.set()
