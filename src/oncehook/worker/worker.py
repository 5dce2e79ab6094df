"""Leases receipts of one consumer ahead of need, and processes many of them concurrently.

A process runs one worker per consumer. Each has its own slots, so a slow consumer takes none from another.
"""

import asyncio
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from oncehook.concurrency.quarantine import Quarantine
from oncehook.concurrency.stopping import finish_or_cancel
from oncehook.handlers.registry import Handler
from oncehook.model.errors import Unavailable
from oncehook.model.event import MAIN
from oncehook.model.lease import Leased, LeaseKey
from oncehook.model.patterns import Handled
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.paused_sources import PausedSources
from oncehook.store.store import Store
from oncehook.worker.feed import DatabaseFeed, Feed
from oncehook.worker.process import Processor
from oncehook.worker.rate_limit import RateLimit
from oncehook.worker.wakeups import no_announcement

BUSY_SECONDS, MAX_AHEAD = 0.05, 8
"""If a lease is used up within BUSY_SECONDS, the worker leases further ahead, up to MAX_AHEAD receipts per slot."""


ISOLATED_SECONDS = 10.0
"""For how many seconds a quarantined receipt keeps the other consumers of its process from starting theirs."""


class Worker:
    """Leases the receipts of one consumer and processes them, up to `concurrency` at the same time."""

    def __init__(
        self,
        store: Store,
        processor: Processor,
        *,
        consumer: str = MAIN,
        name: str | None = None,
        concurrency: int = 16,
        rate: float | None = None,
        lease_seconds: float = 30.0,
        poll: float = 1.0,
        skip_failed: Collection[str] = (),
        announce: Callable[[], None] | None = None,
        handled: Callable[[], Handled] | None = None,
        feed: Callable[[DatabaseFeed], Feed] | None = None,
    ) -> None:
        self.store = store
        self.consumer = consumer
        self.leases = store.leases if consumer == MAIN else store.leases_of(consumer)
        self.processor = processor
        self.wakeups = processor.wakeups_of(consumer)
        self.isolation = processor.isolation
        self.concurrency = concurrency
        self.lease_seconds = lease_seconds
        self.poll = poll
        self.announce = announce or no_announcement
        handled = handled or (lambda: processor.handlers.handled_by(consumer))
        # Unique: a restarted container can have the host name and process id of the one before it.
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        database = DatabaseFeed(
            leases=self.leases,
            worker=self.name,
            lease_seconds=lease_seconds,
            poll=poll,
            skip_failed=skip_failed,
            handled=handled,
        )
        self.feed: Feed = database if feed is None else feed(database)
        if feed is not None:
            processor.observers[consumer] = self.feed
        self._limit = None if rate is None else RateLimit(store.rates, consumer, rate, processor.clock)
        self._ready: deque[Leased] = deque()
        self._leased_at, self._was_full = 0.0, False  # the last lease, and whether it filled all its room
        self._stray_until = 0.0  # until then, a lease whose reply was lost may hold receipts
        self._ahead_per_slot = 1  # receipts that are leased ahead for each slot
        self._refill_below = 0  # lease more when at most this many receipts are ready
        self._quarantine: Quarantine[Leased] = Quarantine(processor.clock)
        self._paused = PausedSources(store.pauses, processor.clock)
        self._known_paused: frozenset[str] = frozenset()
        self._is_paused = False  # the whole consumer
        self._is_leasing = False
        self._releasing = 0  # leases that are being released
        self._running: set[asyncio.Task[Any]] = set()
        self._wakeup = asyncio.Event()  # receipts may be due, or a slot is free
        self._stop_requested = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.store.process.worker = self.name
        self.isolation.join(self)
        self._feeder = asyncio.create_task(self._feed())

    def wake(self) -> None:
        """Look for due receipts now."""
        self.feed.wake()
        self._wakeup.set()

    def continue_leasing(self) -> None:
        """Lease now: the feed has more."""
        self._wakeup.set()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs, and no receipt is leased that has not started."""
        return not (self._running or self._ready or self._is_leasing or self._releasing)

    async def stop(self, grace: float = 30.0) -> None:
        """Stop leasing, let running handlers finish within `grace` seconds, and release unstarted receipts."""
        self._stop_requested.set()
        self._wakeup.set()
        try:
            await asyncio.gather(self._release_unstarted(), finish_or_cancel(self._running, grace))
        finally:
            self.isolation.leave(self)

    async def _release_unstarted(self) -> None:
        if self._feeder is not None:
            await asyncio.gather(self._feeder, return_exceptions=True)
        await self._release_ready()
        await self._postpone_quarantined()

    async def _release_ready(self) -> None:
        """Release the receipts that are leased and not started."""
        released = [leased.lease_key for leased in self._ready]
        self._ready.clear()
        await self._release(released)

    async def _postpone_quarantined(self) -> None:
        """Release the quarantined receipt, unless it runs."""
        item = self._quarantine.postpone()
        if item is not None:
            self.isolation.release(self)
            await self._release([item.lease_key])

    async def _release_paused(self) -> None:
        """Release unstarted receipts of sources that were paused after the lease."""
        if self._is_paused:
            self._paused.expire()  # a paused consumer leases nothing, so only this shows that it is resumed
        try:
            paused = await self._paused.sources()
        except Unavailable:
            return  # the next lease reports it
        was_paused, self._is_paused = self._is_paused, self.consumer in self._paused.consumers
        if (paused, self._is_paused) != (self._known_paused, was_paused):
            self.feed.wake()
        self._log_pauses(paused, was_paused)
        self._known_paused = paused
        released = [leased for leased in self._ready if self._is_held(leased)]
        if released:
            self._ready = deque(leased for leased in self._ready if not self._is_held(leased))
        await self._release([leased.lease_key for leased in released])
        if self._quarantine.item is not None and self._is_held(self._quarantine.item):
            await self._postpone_quarantined()

    def _is_held(self, leased: Leased) -> bool:
        """Whether a pause keeps a receipt from being started."""
        return self._is_paused or leased.source in self._known_paused

    def _log_pauses(self, paused: frozenset[str], was_paused: bool) -> None:
        if self._is_paused != was_paused:
            if self._is_paused:
                signals.emit("consumer_paused", consumer=self.consumer)
            else:
                signals.emit("consumer_resumed", consumer=self.consumer)
        if self.consumer != MAIN:
            return  # the worker of `main` logs the sources
        for name in sorted(paused - self._known_paused):
            signals.emit("source_paused", source=name)
        for name in sorted(self._known_paused - paused):
            signals.emit("source_resumed", source=name)

    async def _release(self, keys: Sequence[LeaseKey]) -> None:
        for lease in keys:
            self.processor.heartbeat.drop(lease)
        if keys:
            self._releasing += len(keys)
            try:
                await self.leases.release(keys)
                self.announce()
                if not self._stop_requested.is_set():
                    self.feed.postponed([receipt for receipt, _ in keys], 0.0)
            except Unavailable as error:
                signals.emit("release_failed", count=len(keys), detail=error.detail)
            finally:
                self._releasing -= len(keys)
                self.isolation.notify(self)
            self.feed.ended(receipt for receipt, _ in keys)

    # -- feeding --------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Lease receipts while slots are free, start them, and wait when none is due."""
        while not self._stop_requested.is_set():
            self._wakeup.clear()
            try:
                await self._release_paused()
                count = await self._lease()
                if self._stop_requested.is_set():
                    return
                self._start_ready()
            except Exception as error:
                signals.log_background_failure("worker", error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop_requested.wait(), self.poll)
                continue
            if not count or self._ready:
                reach(Checkpoint.WORKER_IDLE)
                patience = self._quarantine.patience_left
                try:
                    seconds = (
                        self.wakeups.seconds_left(self.feed.seconds_left()) if patience is None else max(patience, 0)
                    )
                    if self._limit is not None and self._limit.seconds_left() > 0:
                        seconds = min(seconds, self._limit.seconds_left())
                    await asyncio.wait_for(self._wakeup.wait(), seconds)
                except TimeoutError:
                    pass

    async def _lease(self) -> int:
        """Lease receipts before the ready ones are used up. While a quarantined receipt waits, lease nothing."""
        patience = self._quarantine.patience_left
        if patience is not None and patience <= 0 and not self._may_start_quarantined:
            await self._postpone_quarantined()
        if self._quarantine.item is not None or self.isolation.is_held_for_other(self):
            await self._release_ready()  # if the quarantined receipt kills this process, they must lose no attempt
            self.isolation.notify(self)
            return 0
        if self._is_paused:
            return 0
        batch = self.processor.handlers.largest_batch(self.consumer) + 1
        ahead = max(self._ahead(), 2 * batch)
        self._refill_below = ahead // 2
        if len(self._ready) > self._refill_below:
            return 0
        free = (
            self.concurrency - len(self._running) if batch == 1 else 0
        )  # with batch handlers, waiting makes larger batches
        room = self.feed.room(ahead - len(self._ready) + free)
        if not room:
            return 0
        self._leased_at = self.processor.clock.monotonic()
        self._is_leasing = True
        try:
            await self._release_strays()
            if self._limit is not None:
                room = await self._take_tokens(self._limit, room, batch)
                if not room:
                    return 0
            leased = await self._lease_rescued() if self._quarantine.is_due else []
            if not leased:
                leased = await self.feed.take(room)
            if not leased and not self._running and not self._ready:
                leased = await self._lease_rescued()
            if self._limit is not None:
                await self._limit.refund(room - len(leased))
        except Unavailable as error:
            signals.emit("worker_database_unavailable", detail=error.detail)
            self._stray_until = self._leased_at + self.lease_seconds
            return 0
        finally:
            self._is_leasing = False
        for receipt in leased:
            self.processor.heartbeat.hold(receipt.lease_key)
        if self._quarantine.item is None:
            self._ready.extend(leased)
            self._was_full = len(leased) == room
        return len(leased)

    async def _take_tokens(self, limit: RateLimit, room: int, batch: int) -> int:
        """Take a token for each receipt that could start now. With a rate, nothing is leased ahead.

        Receipts that wait for a slot would otherwise start together when slots become free.
        """
        startable = (self.concurrency - len(self._running)) * batch - len(self._ready)
        return await limit.take(min(room, startable))

    async def _release_strays(self) -> None:
        """Release the receipts of a lease whose reply was lost, without counting an attempt.

        This is repeated until that lease has expired, because the statement may have committed later.
        """
        if self._leased_at < self._stray_until:
            await self.leases.release_strays(self.name, self.processor.heartbeat.receipts)

    async def _lease_rescued(self) -> list[Leased]:
        """Lease one receipt whose last worker died, and hold it in quarantine."""
        if not self.isolation.is_free:
            return []
        leased = await self.feed.take(1, rescued=True)
        if leased and not self.isolation.acquire(self):  # another consumer was first
            await self._release([leased[0].lease_key])
            leased = []
        self._quarantine.hold(leased[0] if leased else None)
        return leased

    def _ahead(self) -> int:
        """How many receipts to have ready in addition to the running ones.

        With fast handlers it grows, so that no free slot waits for a lease. With slow handlers it stays small, so that
        other workers can lease the receipts.
        """
        since = self.processor.clock.monotonic() - self._leased_at
        if since > 10 * BUSY_SECONDS:
            self._ahead_per_slot = 1
        elif since < BUSY_SECONDS and self._was_full:
            self._ahead_per_slot = min(2 * self._ahead_per_slot, MAX_AHEAD)
        return self._ahead_per_slot * self.concurrency

    def _start_ready(self) -> None:
        if self._quarantine.item is not None:
            self._start_quarantined(self._quarantine.item)
            return
        if self.isolation.is_held_for_other(self):
            return
        while self._ready and len(self._running) < self.concurrency:
            leased = self._ready.popleft()
            if self.processor.heartbeat.is_released(
                leased.lease_key
            ):  # the heartbeat released it while the loop was blocked
                self.processor.heartbeat.drop(leased.lease_key)
                self.feed.ended([leased.receipt])
                continue
            handler = self.processor.handlers.find(leased.source, leased.type, leased.consumer)
            batch = [leased]
            if handler is not None and handler.batch:
                batch += self._take_ready_for(handler, handler.batch - 1)
                task: asyncio.Task[Any] = asyncio.create_task(self.processor.process_batch(handler, batch))
            else:
                task = asyncio.create_task(self.processor.process(leased))
            self._running.add(task)
            task.add_done_callback(partial(self._task_done, batch))

    def _start_quarantined(self, leased: Leased) -> None:
        """Start a quarantined receipt if no worker of this process runs anything else."""
        if not self._may_start_quarantined:
            return

        # If it has not killed the process by then, it delays other consumers no longer.
        timer = asyncio.get_running_loop().call_later(ISOLATED_SECONDS, self.isolation.release, self)

        def done(task: "asyncio.Task[Any]") -> None:
            timer.cancel()
            self._quarantine.finish()
            self.isolation.release(self)
            self._task_done([leased], task)
            self._wakeup.set()

        task: asyncio.Task[Any] = asyncio.create_task(self.processor.process(leased))
        self._quarantine.start()
        self._running.add(task)
        task.add_done_callback(done)

    @property
    def _may_start_quarantined(self) -> bool:
        return not self._running and self.isolation.are_others_quiet(self)

    def _take_ready_for(self, handler: Handler, limit: int) -> list[Leased]:
        """Remove up to `limit` ready receipts of the same batch handler from the queue, and return them."""
        find = self.processor.handlers.find
        batch = [leased for leased in self._ready if find(leased.source, leased.type, leased.consumer) is handler][
            :limit
        ]
        numbers = {leased.receipt for leased in batch}
        self._ready = deque(leased for leased in self._ready if leased.receipt not in numbers)
        return batch

    def _task_done(self, batch: Sequence[Leased], task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        self.feed.ended(leased.receipt for leased in batch)
        self.isolation.notify(self)
        if not self._stop_requested.is_set():
            self._start_ready()
        if len(self._ready) <= self._refill_below or not self._running:
            self._wakeup.set()
