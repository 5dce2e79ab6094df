"""lease → handle → settle: what was acked is worked off, each receipt in a transaction of its own, many at once.

Attempts are counted at the lease, so a handler that kills its process is counted too. Every write that ends an attempt
matches the lease's fence; where it does not match, somebody else has the receipt, and nothing of ours is kept.
"""

import asyncio
import os
import socket
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from oncehook import signals
from oncehook.clock import SYSTEM, Clock
from oncehook.errors import Unavailable
from oncehook.event import Event
from oncehook.handle import Handler, Handlers, is_repeated
from oncehook.heartbeat import Heartbeat
from oncehook.receipt import Leased, Settled, State
from oncehook.retry import Again, NotNow, Retry, decide
from oncehook.settle import Settler
from oncehook.store import Store
from oncehook.transact import Transaction

MOMENT, MOST_AHEAD = 0.05, 8
"""Leases that follow each other within so many seconds take more at once, up to so many for each place."""

RESCUED_EVERY = 10.0
"""Seconds after which a receipt whose worker died has its turn, however much else there is to do."""

OURS = str(Path(__file__).parent)


class Processor:
    """Runs handlers for receipts that are leased, and settles them."""

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        heartbeat: Heartbeat,
        *,
        transaction: Callable[[], Transaction] | None = None,
        version: str | None = None,
        clock: Clock = SYSTEM,
        announce: Callable[[], None] | None = None,
        threads: int = 16,
    ) -> None:
        self.store = store
        self.announce = announce or _nobody
        self.handlers = handlers
        self.heartbeat = heartbeat
        self.transaction = transaction or store.transaction
        self.version = version
        self.clock = clock
        self.settler = Settler(store)
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="oncehook-handler")  # of plain `def` handlers

    def close(self) -> None:
        """No more handlers. One that hangs in its thread is not waited for."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def work(
        self, leased: Leased, *, retry: Retry | None = None, retry_after: float | None = None
    ) -> Settled | None:
        """One receipt, to the end of this attempt: what was written, or None if nothing of ours counts any more.

        `retry` and `retry_after` stand in for the handler's own policy where the provider drives the retries.
        """
        try:
            settled, transaction = await self._attempt(leased, retry)
            landed = transaction is not None and await self._settle_in(transaction, leased, settled, retry)
            if transaction is None or settled.status is not State.PROCESSED:
                if settled.after is not None and retry_after is not None:
                    settled.after = retry_after
                landed = await self.settler.settle(settled)
            signals.settled(leased, settled, landed)
            if settled.after == 0:
                self.announce()  # it is due now, and this worker may have no room
            return settled if landed else None
        except NotNow as error:
            await self._put_back(leased, error)
            return None
        except Unavailable as error:
            signals.emit("settle_failed", receipt=leased.receipt, source=leased.source, detail=error.detail)
            return None
        finally:
            self.heartbeat.drop(leased.held)

    async def _put_back(self, leased: Leased, error: NotNow) -> None:
        """No attempt was made, so none is counted, and nothing is written down. Unanswered, the lease runs out."""
        try:
            await self.store.release([leased.held], error.after)
        except Unavailable as refused:
            signals.emit("release_failed", count=1, detail=refused.detail)

    async def _settle_in(self, transaction: Transaction, leased: Leased, settled: Settled, retry: Retry | None) -> bool:
        """The mark with the work. What fails here, a constraint at COMMIT or a last flush, is the handler's failure."""
        try:
            return await transaction.settle([settled])
        except Exception as error:
            await transaction.rollback()
            handler = self.handlers.find(leased.source, leased.type)
            self._failed(settled, leased, retry or (handler.retry if handler else Retry()), error)
            return False

    async def work_batch(self, handler: Handler, batch: Sequence[Leased]) -> None:
        """Many receipts in one transaction. If anything fails, they rerun one by one, on the same attempt."""
        for one in batch:
            if one.body is None:  # erased: it fails by itself, and no handler sees it
                await self.work(one)
        batch = [one for one in batch if one.body is not None]
        if not batch:
            return
        started = self.clock.monotonic()
        transaction = self.transaction()
        settled = [self._done(one, handler) for one in batch]
        try:
            await self._call(handler, [Event(one, transaction) for one in batch], transaction, batch)
            for done in settled:
                done.seconds = self.clock.monotonic() - started
            whole = not transaction.used or await transaction.settle(settled)
        except Exception:
            await transaction.rollback()
            whole = False
        except asyncio.CancelledError:  # the worker stops: nothing of it is kept, and somebody else takes them
            await asyncio.shield(self._give_up(transaction, batch))
            raise
        if not whole:
            for one in batch:
                await self.work(one)
        elif transaction.used:
            for leased, done in zip(batch, settled, strict=True):
                self._ended(leased, done, True)
        else:
            await asyncio.gather(*map(self._mark, batch, settled))

    async def _mark(self, leased: Leased, settled: Settled) -> None:
        """Settle an event of a batch that wrote nothing: its mark stands or falls by itself."""
        try:
            self._ended(leased, settled, await self.settler.settle(settled))
        except Unavailable as error:
            self.heartbeat.drop(leased.held)
            signals.emit("settle_failed", receipt=leased.receipt, source=leased.source, detail=error.detail)

    def _ended(self, leased: Leased, settled: Settled, landed: bool) -> None:
        self.heartbeat.drop(leased.held)
        signals.settled(leased, settled, landed)

    async def _give_up(self, transaction: Transaction, batch: Sequence[Leased]) -> None:
        await transaction.rollback()
        for leased in batch:
            self.heartbeat.drop(leased.held)
        with suppress(Unavailable):
            await self.store.release([leased.held for leased in batch])

    async def _attempt(self, leased: Leased, retry: Retry | None = None) -> tuple[Settled, Transaction | None]:
        """Run the handler; what to write, and the transaction to write it in if the handler used one."""
        handler = self.handlers.find(leased.source, leased.type)
        settled = self._done(leased, handler)
        if leased.body is None:
            settled.status, settled.outcome, settled.error = State.FAILED, "failed", "its payload was erased"
            return settled, None
        if handler is None:
            settled.outcome = "no handler"
            return settled, None
        transaction: Transaction | None = self.transaction()
        assert transaction is not None
        started = self.clock.monotonic()
        event = Event(leased, transaction)
        try:
            if not await is_repeated(handler, event, transaction):
                await self._call(handler, [event] if handler.batch else event, transaction, [leased])
        except Exception as error:
            await transaction.rollback()
            if isinstance(error, NotNow) and retry is None:
                raise
            self._failed(settled, leased, retry or handler.retry, error)
            transaction = None
        except asyncio.CancelledError:
            await asyncio.shield(transaction.rollback())
            self._failed(settled, leased, retry or handler.retry, TimeoutError("the worker was stopped"))
            transaction = None
        settled.seconds = self.clock.monotonic() - started
        return settled, transaction if transaction is not None and transaction.used else None

    async def _call(self, handler: Handler, given: Any, transaction: Transaction, held: Sequence[Leased]) -> None:
        for leased in held:
            self.heartbeat.keep(leased.held, handler.timeout)
        await handler.call(given, transaction, self.threads)

    def _done(self, leased: Leased, handler: Handler | None) -> Settled:
        name = handler.name if handler else None
        return Settled(leased.receipt, leased.lease, State.PROCESSED, "processed", handler=name, version=self.version)

    def _failed(self, settled: Settled, leased: Leased, retry: Retry, error: BaseException) -> None:
        decision = decide(retry, leased.attempt, error)
        settled.status = State.RETRYING if isinstance(decision, Again) else State.FAILED
        settled.outcome = settled.status.value
        settled.after = decision.after if isinstance(decision, Again) else None
        settled.error = said(error)
        settled.traceback = told(error)


def said(error: BaseException) -> str:
    """What a handler's error says, in its first line: drivers and validators put the row or the payload below that."""
    try:
        first, *_ = str(error).splitlines() or [""]
    except Exception:  # a __str__ that fails must not keep the attempt from being written down
        first = ""
    return f"{type(error).__name__}: {first}"[:2000]


def told(error: BaseException) -> str:
    """Where a handler's error went through: its own frames, never what the values were."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(OURS)]
    return "".join(traceback.format_list(theirs or frames))[-8000:]


def _nobody() -> None:
    """There is nobody to tell."""


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
    ) -> None:
        self.store = store
        self.processor = processor
        self.concurrency = concurrency
        self.lease_seconds = lease_seconds
        self.poll = poll  # seconds between looks when nothing woke it: a wake-up is a hint, never the only way
        self.skip_failed = skip_failed  # sources whose dead letters do not block their serial keys
        self.announce = announce or _nobody
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._ready: deque[Leased] = deque()
        self._leased_at, self._was_full = 0.0, False  # the last lease, and whether it found as many as it asked for
        self._pace = 1  # how many are leased ahead for each place
        self._enough = 0  # with more than so many ready, no lease is needed
        self._alone: Leased | None = None  # whose last worker died: nothing else runs beside it
        self._alone_runs = False
        self._rescued_turn = 0.0
        self._running: set[asyncio.Task[Any]] = set()
        self._attention = asyncio.Event()  # something may be due, or a place is free
        self._stop_asked = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._feeder = asyncio.create_task(self._feed())

    def wake(self) -> None:
        """Something may be due."""
        self._attention.set()

    async def stop(self, grace: float = 30.0) -> None:
        """Lease no more, let running handlers finish within `grace`, give back what was not started."""
        self._stop_asked.set()
        self._attention.set()
        if self._feeder is not None:
            await asyncio.gather(self._feeder, return_exceptions=True)
        await self._give_back()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _give_back(self) -> None:
        held = [leased.held for leased in self._ready]
        if self._alone is not None and not self._alone_runs:
            held.append(self._alone.held)
            self._alone = None
        self._ready.clear()
        for one in held:
            self.processor.heartbeat.drop(one)
        if held:
            try:
                await self.store.release(held)
                self.announce()
            except Unavailable as error:
                signals.emit("release_failed", count=len(held), detail=error.detail)

    # -- feeding --------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Lease when there is room, start what is leased, and wait when nothing is due."""
        while not self._stop_asked.is_set():
            self._attention.clear()
            found = await self._lease()
            if self._stop_asked.is_set():
                return
            self._start_ready()
            if not found or self._ready:
                try:
                    await asyncio.wait_for(self._attention.wait(), self.poll)
                except TimeoutError:
                    pass

    async def _lease(self) -> int:
        """Lease before nothing is ready. A receipt whose worker died is taken alone, and nothing else is started."""
        if self._alone is not None:
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
            leased = await self._take_rescued() if self._leased_at >= self._rescued_turn else []
            if not leased:
                leased = await self._take(room)
            if not leased and not self._running and not self._ready:
                leased = await self._take_rescued()
        except Unavailable as error:
            signals.emit("worker_waits", detail=error.detail)
            return 0
        for one in leased:
            self.processor.heartbeat.keep(one.held)
        if self._alone is None:
            self._ready.extend(leased)
            self._was_full = len(leased) == room
        return len(leased)

    async def _take_rescued(self) -> list[Leased]:
        """A receipt whose last worker died. Its turn is when nothing else is to do, and now and then in any case."""
        taken = await self._take(1, rescued=True)
        self._rescued_turn = self._leased_at + (0 if taken else RESCUED_EVERY)
        self._alone = taken[0] if taken else None
        return taken

    async def _take(self, room: int, *, rescued: bool = False) -> list[Leased]:
        return await self.store.lease(
            room, self.lease_seconds, self.name, rescued=rescued, skip_failed=self.skip_failed
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
        if self._alone is not None:
            self._start_alone(self._alone)
            return
        while self._ready and len(self._running) < self.concurrency:
            leased = self._ready.popleft()
            handler = self.processor.handlers.find(leased.source, leased.type)
            if handler is not None and handler.batch:
                work = self.processor.work_batch(handler, [leased, *self._take_same(handler, handler.batch - 1)])
                task: asyncio.Task[Any] = asyncio.create_task(work)
            else:
                task = asyncio.create_task(self.processor.work(leased))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _start_alone(self, leased: Leased) -> None:
        """It may take its worker along, but no neighbour: what runs ends first, and nothing is started beside it."""
        if self._running:
            return

        def ended(task: "asyncio.Task[Any]") -> None:
            self._alone, self._alone_runs = None, False
            self._ended(task)
            self._attention.set()

        task: asyncio.Task[Any] = asyncio.create_task(self.processor.work(leased))
        self._alone_runs = True
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
