"""handle → settle: what was leased is worked off, each receipt in a transaction of its own.

Attempts are counted at the lease, so a handler that kills its process is counted too. Every write that ends an attempt
matches the lease's fence; where it does not match, somebody else has the receipt, and nothing of ours is kept.
"""

import asyncio
from collections.abc import Callable, Sequence

from oncehook.concurrency.calling import Threads, after_failure, told
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.concurrency.stopping import is_stopping
from oncehook.concurrency.wakeup_queue import Dues
from oncehook.handlers.event import BaseEvent
from oncehook.handlers.payload import DecodedPayloads
from oncehook.handlers.registry import Handler, Handlers, is_repeated
from oncehook.model.errors import Unavailable
from oncehook.model.lease import Leased, Settled
from oncehook.model.retry import Postpone, Retry
from oncehook.model.states import State
from oncehook.observability import signals, tracing
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction
from oncehook.worker.heartbeat import Heartbeat
from oncehook.worker.settle import Settler

NO_HANDLER_SECONDS = 5.0
"""When an event that was leased without a handler is due again."""


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
        self.announce = announce or nobody
        self.handlers = handlers
        self.heartbeat = heartbeat
        self.transaction = transaction or store.transaction
        self.version = version
        self.clock = clock
        self.settler = Settler(store.leases)
        self.dues = Dues(clock)
        self.threads = Threads(threads, "oncehook-handler")  # of plain `def` handlers

    @tracing.trace_attempt
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
            signals.record_attempt(leased, settled, landed)
            self.dues.add(settled.after)
            if settled.after == 0:
                self.announce()  # it is due now, and this worker may have no room
            return settled if landed else None
        except Postpone as error:
            await self._put_back([leased], error.after)
            return None
        except asyncio.CancelledError:  # the worker stops: nothing of it is kept, and somebody else takes it
            await asyncio.shield(self._put_back([leased], retry_after))
            raise
        except Unavailable as error:
            signals.emit("settle_failed", receipt=leased.receipt, source=leased.source, detail=error.detail)
            return None
        finally:
            self.heartbeat.drop(leased.held)

    async def _put_back(self, batch: Sequence[Leased], after: float | None = None) -> None:
        """No attempt is counted, and nothing is written down. Unanswered, the leases run out.

        What was settled meanwhile stays so: the fence of its lease does not match any more.
        """
        for leased in batch:
            self.heartbeat.drop(leased.held)
        try:
            await self.store.leases.release([leased.held for leased in batch], after)
            self.dues.add(after)
        except Unavailable as refused:
            signals.emit("release_failed", count=len(batch), detail=refused.detail)
        if after is None:
            self.announce()

    async def _settle_in(self, transaction: Transaction, leased: Leased, settled: Settled, retry: Retry | None) -> bool:
        """The mark with the work. What fails here, a constraint at COMMIT or a last flush, is the handler's failure."""
        try:
            return await transaction.settle([settled])
        except (Exception, asyncio.CancelledError) as error:
            await asyncio.shield(transaction.rollback())
            if is_stopping():
                raise asyncio.CancelledError from error
            handler = self.handlers.find(leased.source, leased.type)
            self._failed(settled, leased, retry or (handler.retry if handler else Retry()), error)
            return False

    async def work_batch(self, handler: Handler, batch: Sequence[Leased]) -> None:
        """Many receipts in one transaction. If anything fails, they rerun one by one, on the same attempt."""
        try:
            single = [one for one in batch if one.body is None]  # erased: each fails by itself, and no handler sees it
            readable = [one for one in batch if one.body is not None]
            if readable and not await self._work_together(handler, readable):
                single += readable
            for one in single:
                self.heartbeat.keep(one.held)  # it waits for its turn, however long those before it take
            for one in single:
                if is_stopping():
                    raise asyncio.CancelledError
                await self.work(one)
        except asyncio.CancelledError:
            await asyncio.shield(self._put_back(batch))
            raise

    @tracing.trace_attempt
    async def _work_together(self, handler: Handler, batch: Sequence[Leased]) -> bool:
        """Whether the batch as a whole came to its end. If not, nothing of it is kept."""
        started = self.clock.monotonic()
        transaction = self.transaction()
        settled = [self._done(one, handler) for one in batch]
        try:
            await self._run(handler, [handler.event_class(one, transaction) for one in batch], transaction, batch)
            for done in settled:
                done.seconds = self.clock.monotonic() - started
            whole = not transaction.used or await transaction.settle(settled)
        except (Exception, asyncio.CancelledError) as error:
            await asyncio.shield(transaction.rollback())
            if is_stopping():
                raise asyncio.CancelledError from error
            return False
        if whole and transaction.used:
            for leased, done in zip(batch, settled, strict=True):
                self._ended(leased, done, True)
        elif whole:
            await asyncio.gather(*map(self._mark, batch, settled))
        return whole

    async def _mark(self, leased: Leased, settled: Settled) -> None:
        """Settle an event of a batch that wrote nothing: its mark stands or falls by itself."""
        try:
            self._ended(leased, settled, await self.settler.settle(settled))
        except Unavailable as error:
            self.heartbeat.drop(leased.held)
            signals.emit("settle_failed", receipt=leased.receipt, source=leased.source, detail=error.detail)

    def _ended(self, leased: Leased, settled: Settled, landed: bool) -> None:
        self.heartbeat.drop(leased.held)
        signals.record_attempt(leased, settled, landed)

    async def _attempt(self, leased: Leased, retry: Retry | None = None) -> tuple[Settled, Transaction | None]:
        """Run the handler; what to write, and the transaction to write it in if the handler used one."""
        handler = self.handlers.find(leased.source, leased.type)
        settled = self._done(leased, handler)
        if leased.body is None:
            settled.status, settled.outcome, settled.error = State.FAILED, "failed", "its payload was erased"
            return settled, None
        if handler is None:  # no lease takes such an event; if one does, it is for another process
            raise Postpone("this process has no handler for it", after=NO_HANDLER_SECONDS)
        transaction: Transaction | None = self.transaction()
        assert transaction is not None
        started = self.clock.monotonic()
        event = handler.event_class(leased, transaction)
        try:
            await self._run(handler, [event], transaction, [leased])
        except (Exception, asyncio.CancelledError) as error:
            await asyncio.shield(transaction.rollback())
            if is_stopping():
                raise asyncio.CancelledError from error
            if retry is None and isinstance(error, Postpone):
                raise
            self._failed(settled, leased, retry or handler.retry, error)
            transaction = None
        settled.seconds = self.clock.monotonic() - started
        return settled, transaction if transaction is not None and transaction.used else None

    async def _run(
        self, handler: Handler, events: Sequence[BaseEvent], transaction: Transaction, held: Sequence[Leased]
    ) -> None:
        """Run the handler, then the projection of its events."""
        payloads = None if handler.payloads is None else handler.payloads.decode(events[0])
        if not await is_repeated(handler, events[0], transaction):
            await self._call(handler, events, transaction, held, payloads)
        await self.handlers.project(events, transaction)

    async def _call(
        self,
        handler: Handler,
        events: Sequence[BaseEvent],
        transaction: Transaction,
        held: Sequence[Leased],
        payloads: DecodedPayloads | None,
    ) -> None:
        seconds = handler.longest(self.threads)
        if not all(self.heartbeat.keep(leased.held, seconds) for leased in held):
            raise Postpone("the event loop was blocked, and somebody else has the receipt", after=0.0)
        await handler.call(events if handler.batch else events[0], transaction, self.threads, payloads)

    def _done(self, leased: Leased, handler: Handler | None) -> Settled:
        name = handler.name if handler else None
        return Settled(leased.receipt, leased.lease, State.PROCESSED, "processed", handler=name, version=self.version)

    def _failed(self, settled: Settled, leased: Leased, retry: Retry, error: BaseException) -> None:
        settled.after, settled.error = after_failure(retry, leased.attempt, error)
        settled.status = State.FAILED if settled.after is None else State.RETRYING
        settled.outcome = settled.status.value
        settled.traceback = told(error)


def nobody() -> None:
    """There is nobody to tell."""
