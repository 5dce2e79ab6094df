"""Runs handlers for leased receipts and settles them. Each receipt has its own transaction.

Attempts are counted when a receipt is leased, so a handler that kills its process counts as an attempt. Every write
that ends an attempt must match the fence of the lease. If it does not, another worker has the receipt, and the
transaction is rolled back.
"""

import asyncio
from collections.abc import Callable, Sequence

from oncehook.concurrency.calling import Threads, after_failure, error_class, user_traceback
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.concurrency.stopping import is_stopping
from oncehook.concurrency.wakeup_queue import WakeupQueue
from oncehook.config.keyring import KEY_MISSING_SECONDS, KeyMissing
from oncehook.handlers.event import BaseEvent
from oncehook.handlers.payload import DecodedPayloads
from oncehook.handlers.registry import Handler, Handlers, is_repeated
from oncehook.model.errors import Unavailable
from oncehook.model.event import MAIN
from oncehook.model.lease import Leased, Settled
from oncehook.model.retry import Postpone, Retry
from oncehook.model.states import State
from oncehook.objects.reference import ObjectStoreUnavailable
from oncehook.observability import signals, tracing
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction
from oncehook.worker.feed import Feed
from oncehook.worker.heartbeat import Heartbeat
from oncehook.worker.isolation import Isolation
from oncehook.worker.settle import Settler
from oncehook.worker.wakeups import no_announcement

NO_HANDLER_SECONDS = 5.0
"""Seconds after which an event that was leased without a handler is due again."""

STORE_DOWN_SECONDS = 5.0
"""Seconds after which a payload store that did not answer is tried again. Its circuit breaker may wait for longer."""


class Processor:
    """Runs handlers for leased receipts, and settles the receipts."""

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
        slots: Callable[[str], int] = lambda consumer: 16,
    ) -> None:
        self.store = store
        self.announce = announce or no_announcement
        self.handlers = handlers
        self.heartbeat = heartbeat
        self.transaction = transaction or store.transaction
        self.version = version
        self.clock = clock
        self.settler = Settler(store.leases)
        self.isolation = Isolation()
        self.observers: dict[str, Feed] = {}  # by consumer: told how attempts end
        self._slots = slots  # of a consumer
        self._wakeups: dict[str, WakeupQueue] = {}  # by consumer
        self._threads: dict[str, Threads] = {}

    def wakeups_of(self, consumer: str) -> WakeupQueue:
        """Return the wake-ups of a consumer. If consumers shared them, one worker would remove those of another."""
        if consumer not in self._wakeups:
            self._wakeups[consumer] = WakeupQueue(self.clock)
        return self._wakeups[consumer]

    def threads_of(self, consumer: str) -> Threads:
        """Return the threads for a consumer's plain functions. Those that hang take none from another consumer."""
        if consumer not in self._threads:
            name = "oncehook-handler" if consumer == MAIN else f"oncehook-handler-{consumer}"
            self._threads[consumer] = Threads(self._slots(consumer), name)
        return self._threads[consumer]

    @tracing.trace_attempt
    async def process(
        self, leased: Leased, *, retry: Retry | None = None, retry_after: float | None = None
    ) -> Settled | None:
        """Run one attempt of a receipt. Returns the settled result, or None if the lease was lost or released.

        Where the provider drives the retries, `retry` and `retry_after` replace the handler's policy.
        """
        try:
            if leased.object is not None:
                leased = await self.store.bodies.open_lease(leased)
            settled, transaction = await self._attempt(leased, retry)
            landed = transaction is not None and await self._settle_in(transaction, leased, settled, retry)
            if transaction is None or settled.status is not State.PROCESSED:
                if settled.after is not None and retry_after is not None:
                    settled.after = retry_after
                landed = await self.settler.settle(
                    settled if settled.error is None or not leased.is_encrypted else self._sealed(leased, settled)
                )
            self._record(leased, settled, landed)
            if settled.after is not None:
                self.wakeups_of(leased.consumer).schedule(settled.after)
            if settled.after == 0:
                self.announce()  # it is due now, and this worker may have no free slot
            return settled if landed else None
        except Postpone as error:
            await self._release([leased], error.after if retry is None else retry_after)
            return None
        except asyncio.CancelledError:  # the worker stops, so another worker takes the receipt
            await asyncio.shield(self._release([leased], retry_after))
            raise
        except Unavailable as error:
            signals.emit("settle_failed", receipt=leased.receipt, source=leased.source, detail=error.detail)
            return None
        finally:
            self.heartbeat.drop(leased.lease_key)

    def _sealed(self, leased: Leased, settled: Settled) -> Settled:
        """Return the result with sealed error texts, and keep only the class of the error in `settled`, for the log."""
        if leased.payload_error is not None or settled.error is None:
            return settled  # it says that the payload cannot be decrypted, which is no secret
        stored = self.store.encryption.seal_attempt(leased, settled)
        settled.error = error_class(settled.error)
        return stored

    async def _release(self, batch: Sequence[Leased], after: float | None = None) -> None:
        """Release receipts without counting or recording an attempt. If that fails, their leases expire.

        A receipt that is settled by now stays settled: the fence of its lease no longer matches.
        """
        for leased in batch:
            self.heartbeat.drop(leased.lease_key)
        try:
            released = await self.store.leases.release([leased.lease_key for leased in batch], after)
            self.wakeups_of(batch[0].consumer).schedule(after)
            observer = self.observers.get(batch[0].consumer)
            if observer is not None and after is not None and released == len(batch):
                observer.postponed([leased.receipt for leased in batch], after)
        except Unavailable as error:
            signals.emit("release_failed", count=len(batch), detail=error.detail)
        if after is None:
            self.announce()

    async def _settle_in(self, transaction: Transaction, leased: Leased, settled: Settled, retry: Retry | None) -> bool:
        """Commit the processed status with the handler's work. A failing COMMIT is a failed attempt."""
        try:
            return await transaction.settle([settled])
        except (Exception, asyncio.CancelledError) as error:
            await asyncio.shield(transaction.rollback())
            if is_stopping():
                raise asyncio.CancelledError from error
            handler = self.handlers.find(leased.source, leased.type, leased.consumer)
            self._failed(settled, leased, retry or (handler.retry if handler else Retry()), error)
            return False

    async def process_batch(self, handler: Handler, batch: Sequence[Leased]) -> None:
        """Process many receipts in one transaction. If it fails, run them one by one within the same attempt."""
        try:
            if any(leased.object is not None for leased in batch):
                batch = await asyncio.gather(*map(self.store.bodies.open_lease, batch))
            single = [leased for leased in batch if leased.body is None]  # erased: each fails without its handler
            readable = [leased for leased in batch if leased.body is not None]
            if readable and not await self._process_together(handler, readable):
                single += readable
            for leased in single:
                self.heartbeat.hold(leased.lease_key)  # it waits for the receipts before it, however long they take
            for leased in single:
                if is_stopping():
                    raise asyncio.CancelledError
                await self.process(leased)
        except asyncio.CancelledError:
            await asyncio.shield(self._release(batch))
            raise

    @tracing.trace_attempt
    async def _process_together(self, handler: Handler, batch: Sequence[Leased]) -> bool:
        """Run a batch in one transaction. Returns False if it failed and was rolled back."""
        started = self.clock.monotonic()
        transaction = self.transaction()
        settled = [self._processed(leased, handler) for leased in batch]
        try:
            await self._run(handler, [handler.event_class(leased, transaction) for leased in batch], transaction, batch)
            for result in settled:
                result.seconds = self.clock.monotonic() - started
            succeeded = not transaction.used or await transaction.settle(settled)
        except (Exception, asyncio.CancelledError) as error:
            await asyncio.shield(transaction.rollback())
            if is_stopping():
                raise asyncio.CancelledError from error
            return False
        if succeeded and transaction.used:
            for leased, result in zip(batch, settled, strict=True):
                self._finish(leased, result, True)
        elif succeeded:
            await asyncio.gather(*map(self._settle_one, batch, settled))
        return succeeded

    async def _settle_one(self, leased: Leased, settled: Settled) -> None:
        """Settle one receipt of a batch that wrote nothing, independently of the others."""
        try:
            self._finish(leased, settled, await self.settler.settle(settled))
        except Unavailable as error:
            self.heartbeat.drop(leased.lease_key)
            signals.emit("settle_failed", receipt=leased.receipt, source=leased.source, detail=error.detail)

    def _finish(self, leased: Leased, settled: Settled, landed: bool) -> None:
        self.heartbeat.drop(leased.lease_key)
        self._record(leased, settled, landed)

    def _record(self, leased: Leased, settled: Settled, landed: bool) -> None:
        signals.record_attempt(leased, settled, landed)
        observer = self.observers.get(leased.consumer)
        if observer is not None:
            observer.settled(leased, settled, landed)

    async def _attempt(self, leased: Leased, retry: Retry | None = None) -> tuple[Settled, Transaction | None]:
        """Run the handler. Returns the result, and the transaction to settle in if the handler used it."""
        handler = self.handlers.find(leased.source, leased.type, leased.consumer)
        settled = self._processed(leased, handler)
        if leased.body is None:
            settled.status, settled.outcome, settled.error = State.FAILED, "failed", _why_unreadable(leased)
            return settled, None
        if handler is None:  # leases exclude such events; if one slips through, another process has its handler
            raise Postpone("this process has no handler for the event", after=NO_HANDLER_SECONDS)
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
        self, handler: Handler, events: Sequence[BaseEvent], transaction: Transaction, batch: Sequence[Leased]
    ) -> None:
        """Run the handler, then the projection of its events."""
        payloads = None if handler.payloads is None else handler.payloads.decode(events[0])
        if not await is_repeated(handler, events[0], transaction):
            await self._call(handler, events, transaction, batch, payloads)
        await self.handlers.project(events, transaction)

    async def _call(
        self,
        handler: Handler,
        events: Sequence[BaseEvent],
        transaction: Transaction,
        batch: Sequence[Leased],
        payloads: DecodedPayloads | None,
    ) -> None:
        threads = self.threads_of(handler.consumer)
        seconds = handler.longest(threads)
        if not all(self.heartbeat.hold(leased.lease_key, seconds) for leased in batch):
            raise Postpone("the event loop was blocked, and another worker has the receipt", after=0.0)
        await handler.call(events if handler.batch else events[0], transaction, threads, payloads)

    def _processed(self, leased: Leased, handler: Handler | None) -> Settled:
        name = handler.name if handler else None
        return Settled(leased.receipt, leased.lease, State.PROCESSED, "processed", handler=name, version=self.version)

    def _failed(self, settled: Settled, leased: Leased, retry: Retry, error: BaseException) -> None:
        settled.after, settled.error = after_failure(retry, leased.attempt, error)
        settled.status = State.FAILED if settled.after is None else State.RETRYING
        settled.outcome = settled.status.value
        settled.traceback = user_traceback(error)


def _why_unreadable(leased: Leased) -> str:
    """The error of a receipt without a payload. Raises Postpone if the payload may be readable later or elsewhere."""
    if isinstance(leased.payload_error, KeyMissing):
        signals.emit("key_missing", source=leased.source, receipt=leased.receipt, key=leased.payload_error.key_id)
        raise Postpone(str(leased.payload_error), after=KEY_MISSING_SECONDS)
    if isinstance(leased.payload_error, ObjectStoreUnavailable):
        detail = str(leased.payload_error)
        signals.emit("payload_store_unavailable", source=leased.source, receipt=leased.receipt, detail=detail)
        raise Postpone(detail, after=leased.payload_error.retry_after or STORE_DOWN_SECONDS)
    return "its payload was erased" if leased.payload_error is None else f"it cannot be handled: {leased.payload_error}"
