"""Inline mode: the handler runs before the ack, and the provider's redeliveries are the retries.

The receipt is committed as `processing` with a lease before the handler runs. The handler's work and the processed
status commit together under the lease's fence. If the handler fails, its work is rolled back and the sender gets a 5xx.
A redelivery is the next attempt if the receipt is `retrying` or its lease has expired. While the lease is live, a
redelivery gets 503. While the source is paused, every delivery gets 503 and nothing is recorded.

A process that stops cancels handlers that do not end within its grace period, and releases their receipts without
counting an attempt. If a process crashes, a worker rescues the receipt after its lease expires. In both cases the
receipt is `retrying`, and waits for a redelivery until the provider stops retrying.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from oncehook.concurrency.clock import SYSTEM
from oncehook.concurrency.stopping import finish_or_cancel
from oncehook.handlers.registry import Handlers
from oncehook.handlers.roster import Roster
from oncehook.model.claim import Claim, Claimed
from oncehook.model.event import facts_of
from oncehook.model.lease import Leased, Settled
from oncehook.model.retry import Retry
from oncehook.model.states import State
from oncehook.observability import signals
from oncehook.providers.source import Source
from oncehook.receiver.ack import Response, inline_failed_response, inline_processed_response, unavailable_response
from oncehook.receiver.claim import ClaimStep
from oncehook.store.paused_sources import PausedSources
from oncehook.store.store import Store

UNHANDLED_SECONDS = 60
"""Retry-After, in seconds, for an event that this process has no handler for."""

PAUSED_SECONDS = 60
"""Retry-After, in seconds, while the source is paused."""

PAUSED = "The source is paused, and the event is not recorded. Deliver it again later."
BUSY = "The event is recorded, and its handler is running. Deliver it again later."
STOPPED = "This process is stopping, and the handler did not finish. Deliver the event again."


class ReceiptProcessor(Protocol):
    """Runs handlers. The worker's `Processor` implements it."""

    handlers: Handlers

    async def process(
        self, leased: Leased, *, retry: Retry | None = None, retry_after: float | None = None
    ) -> Settled | None:
        """Handle and settle one receipt. Returns None if its lease was lost or it was released."""


class InlineReceiver:
    """Receives the deliveries of inline sources."""

    def __init__(
        self, store: Store, claimer: ClaimStep, processor: ReceiptProcessor, roster: Roster, lease_seconds: float
    ) -> None:
        self.store = store
        self.claimer = claimer
        self.processor = processor
        self.roster = roster
        self.lease_seconds = lease_seconds
        self._paused = PausedSources(store.pauses)
        self._running: set[asyncio.Task[Response]] = set()

    async def receive(self, source: Source, claims: Sequence[Claim], *, batch: bool) -> Response:
        """Claim the events, run their handlers, then answer. Runs to its end even if the client disconnects."""
        task = asyncio.create_task(self._receive(source, claims, batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait([task])
        return unavailable_response(5, STOPPED) if task.cancelled() else task.result()

    async def stop(self, grace: float) -> None:
        """Let handlers end within `grace` seconds, then cancel them: their senders get 503 and deliver again."""
        await finish_or_cancel(self._running, grace)

    async def _receive(self, source: Source, claims: Sequence[Claim], batch: bool) -> Response:
        if source.name in await self._paused.sources():
            return unavailable_response(PAUSED_SECONDS, PAUSED)  # nothing is recorded: the sender delivers again
        accepted: list[Claim] = []
        for claim in claims:
            finished = claim if self._handles(source, claim) else self._as_ignored(source, claim)
            if finished is None:  # nothing is recorded; the next delivery may reach a process with a handler
                return unavailable_response(UNHANDLED_SECONDS)
            accepted.append(finished)
        claimed = await self.claimer.claim(accepted if source.encrypt is None else source.encrypt(accepted))
        outcomes = [await self._process(source, claim, result) for claim, result in zip(accepted, claimed, strict=True)]
        if "busy" in outcomes:
            return unavailable_response(5, BUSY)
        if "retrying" in outcomes:
            return inline_failed_response()
        return inline_processed_response(accepted, claimed, outcomes, source.provider.answer, batch=batch)

    def _handles(self, source: Source, claim: Claim) -> bool:
        """Whether this process may finish an event. A projection leaves it to a handler in another process."""
        if claim.status is not State.PROCESSING:
            return True
        handlers, type_ = self.processor.handlers, claim.type or ""
        handler = handlers.find(source.name, type_)
        if handler is not None and handler is handlers.projecting.get(source.name):
            return not self.roster.is_handled_elsewhere(source.name, type_, projections=False)
        return handler is not None

    def _as_ignored(self, source: Source, claim: Claim) -> Claim | None:
        """The claim with the status `ignored`, if no process handles the event and its source ignores such events."""
        type_ = claim.type or ""
        if (
            not self.roster.ignores(source.name, type_)
            or not self.roster.is_known
            or self.roster.is_handled(source.name, type_)
        ):
            signals.emit("inline_unhandled", source=source.name, type=type_, event_id=claim.event_id)
            return None
        reason = self.roster.ignored_because(source.name, type_)
        return replace(claim, status=State.IGNORED, last_error=reason, inline_seconds=None)

    async def _process(self, source: Source, claim: Claim, claimed: Claimed) -> str:
        """Process one event. Returns the name of its state, "duplicate" or "busy"."""
        if claimed.fresh:
            if claim.status is not State.PROCESSING:
                return claim.status.value
            leased: Leased | None = _first_lease(claim, claimed, source)
        elif claimed.status not in (State.PROCESSING, State.RETRYING):
            return "duplicate"  # finished, or replayed and left to a worker
        else:
            leased = await self.store.leases.take_one(claimed.receipt, self.lease_seconds, "inline")
        if leased is None:
            return "busy"
        settled = await self.processor.process(leased, retry=self._policy(source), retry_after=source.horizon)
        return settled.status.value if settled is not None else "busy"

    def _policy(self, source: Source) -> Retry:
        """The number of attempts before the event is a dead letter: one unless `on_failure = "retry"`."""
        return Retry(attempts=source.inline_attempts if source.settings.on_failure == "retry" else 1)


def _first_lease(claim: Claim, claimed: Claimed, source: Source) -> Leased:
    return Leased(
        **facts_of(claim) | {"type": claim.type or ""},
        receipt=claimed.receipt,
        lease=claim.inline_lease,
        attempt=1,
        received_at=SYSTEM.datetime(),
        replays=0,
        body=claim.body,
        headers=claim.headers,
        object=None,
        is_encrypted=source.encrypt is not None,
    )
