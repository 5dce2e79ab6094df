"""Inline mode: work first, then the ack. The provider's own retries are the retries.

The receipt is committed as `processing` with a lease before the handler runs; the work and the mark commit together
under its fence. A failure leaves no work behind and answers 5xx; the redelivery of a `retrying` receipt, or of one
whose lease ran out, is the next attempt. Under a live lease a redelivery gets 503: somebody is at it. While the source
is paused, every delivery gets 503 and nothing is recorded.

A process that stops cancels handlers that do not end within its grace, and releases their receipts without counting an
attempt. Of one that crashes, the receipt is taken back when its lease expires. Either way it is `retrying`, and waits
for the redelivery until the provider stops retrying.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from oncehook.concurrency.clock import SYSTEM
from oncehook.concurrency.stopping import end
from oncehook.handlers.registry import Handlers
from oncehook.handlers.roster import Roster, ignored_because
from oncehook.model.claim import Claim, Claimed
from oncehook.model.event import facts_of
from oncehook.model.lease import Leased, Settled
from oncehook.model.retry import Retry
from oncehook.model.states import State
from oncehook.observability import signals
from oncehook.providers.source import Source
from oncehook.receiver.ack import Response, inline_failed, inline_processed, unavailable
from oncehook.receiver.claim import Claimer
from oncehook.store.paused_sources import PausedSources
from oncehook.store.store import Store

UNHANDLED_SECONDS = 60
"""When a sender may come again with an event that this process has no handler for."""

PAUSED_SECONDS = 60
"""When a sender may come again while its source is paused."""

PAUSED = "The source is paused, and the event is not recorded. Deliver it again later."
BUSY = "The event is recorded, and its handler is running. Deliver it again later."
STOPPED = "This process is stopping, and the handler did not finish. Deliver the event again."


class Processor(Protocol):
    """Runs handlers: the worker's processor."""

    handlers: Handlers

    async def work(
        self, leased: Leased, *, retry: Retry | None = None, retry_after: float | None = None
    ) -> Settled | None:
        """Handle and settle one receipt. Returns None if its lease was lost or it was released."""


class Inline:
    """Takes deliveries of inline sources."""

    def __init__(
        self, store: Store, claimer: Claimer, processor: Processor, roster: Roster, lease_seconds: float
    ) -> None:
        self.store = store
        self.claimer = claimer
        self.processor = processor
        self.roster = roster
        self.lease_seconds = lease_seconds
        self._paused = PausedSources(store.pauses)
        self._running: set[asyncio.Task[Response]] = set()

    async def take(self, source: Source, claims: Sequence[Claim], *, batch: bool) -> Response:
        """Claim, work, and only then answer. Goes on to its end whether or not the client still listens."""
        task = asyncio.create_task(self._take(source, claims, batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait([task])
        return unavailable(5, STOPPED) if task.cancelled() else task.result()

    async def stop(self, grace: float) -> None:
        """Let handlers end within `grace` seconds, then cancel them: their senders get 503 and deliver again."""
        await end(self._running, grace)

    async def _take(self, source: Source, claims: Sequence[Claim], batch: bool) -> Response:
        if source.name in await self._paused.sources():
            return unavailable(PAUSED_SECONDS, PAUSED)  # nothing is recorded: the sender keeps the event
        accepted: list[Claim] = []
        for claim in claims:
            finished = claim if self._handles(source, claim) else self._ignored(source, claim)
            if finished is None:  # as above; the next delivery may reach a process with a handler
                return unavailable(UNHANDLED_SECONDS)
            accepted.append(finished)
        claimed = await self.claimer.claim(accepted)
        words = [await self._one(source, claim, outcome) for claim, outcome in zip(accepted, claimed, strict=True)]
        if "busy" in words:
            return unavailable(5, BUSY)
        if "retrying" in words:
            return inline_failed()
        return inline_processed(accepted, claimed, words, source.provider.answer, batch=batch)

    def _handles(self, source: Source, claim: Claim) -> bool:
        """Whether this process may finish an event. A projection leaves it to a handler elsewhere."""
        if claim.status is not State.PROCESSING:
            return True
        handlers, type_ = self.processor.handlers, claim.type or ""
        handler = handlers.find(source.name, type_)
        if handler is not None and handler is handlers.projecting.get(source.name):
            return not self.roster.is_handled_elsewhere(source.name, type_, projections=False)
        return handler is not None

    def _ignored(self, source: Source, claim: Claim) -> Claim | None:
        """The claim as ignored, if no process handles the event and its source ignores such events; else None."""
        type_ = claim.type or ""
        if (
            source.settings.unhandled != "ignore"
            or not self.roster.is_known
            or self.roster.is_handled(source.name, type_)
        ):
            signals.emit("inline_unhandled", source=source.name, type=type_, event_id=claim.event_id)
            return None
        reason = ignored_because(source.name, type_)
        return replace(claim, status=State.IGNORED, last_error=reason, inline_seconds=None)

    async def _one(self, source: Source, claim: Claim, claimed: Claimed) -> str:
        """What became of one event: a state's word, "duplicate", or "busy"."""
        if claimed.fresh:
            if claim.status is not State.PROCESSING:
                return claim.status.value
            leased: Leased | None = _first_lease(claim, claimed)
        elif claimed.status not in (State.PROCESSING, State.RETRYING):
            return "duplicate"  # done with, or replayed: then a worker has it
        else:
            leased = await self.store.leases.take_one(claimed.receipt, self.lease_seconds, "inline")
        if leased is None:
            return "busy"
        settled = await self.processor.work(leased, retry=self._policy(source), retry_after=source.horizon)
        return settled.status.value if settled is not None else "busy"

    def _policy(self, source: Source) -> Retry:
        """*Provider retries* is 5xx for the first attempts, then a dead letter; *first hard failure* is one attempt."""
        return Retry(attempts=source.inline_attempts if source.settings.on_failure == "retry" else 1)


def _first_lease(claim: Claim, claimed: Claimed) -> Leased:
    return Leased(
        **facts_of(claim) | {"type": claim.type or ""},
        receipt=claimed.receipt,
        lease=1,
        attempt=1,
        received_at=SYSTEM.datetime(),
        replays=0,
        body=claim.body,
        headers=claim.headers,
    )
