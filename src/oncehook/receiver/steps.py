"""The road of a delivery: check → verify → read → claim → ack. Every event passes here, so nothing is done twice.

`asgi` and `fast_protocol` are two adapters to it. Until the body is complete and verified, nothing is stored, parsed or
queued. From then on the claim is committed whether or not the client still listens.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim, Claimed
from oncehook.model.delivery import LARGE, Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.model.states import State
from oncehook.observability import metrics, signals, tracing
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.providers.source import Source
from oncehook.receiver.ack import Response, accepted, unavailable
from oncehook.receiver.claim import Claimer
from oncehook.receiver.handshakes import find_signed, find_unsigned, shake_hands
from oncehook.receiver.inline import Inline
from oncehook.receiver.refusals import Refusals
from oncehook.receiver.rejections import RejectionLog
from oncehook.receiver.request import ClientLeft, Refused, check_body, check_request, turned_away
from oncehook.receiver.verifying import Verifying

Complete = Callable[[Source, Delivery], Awaitable[None]]
"""Reads the body of a delivery, and whatever else of the request its source needs."""


class Receiver:
    """Receives deliveries for a set of sources."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        claimer: Claimer,
        rejections: RejectionLog,
        *,
        limit_bytes: int,
        clock: Clock = SYSTEM,
        stats: ReceiverStats | None = None,
    ) -> None:
        self.sources = sources
        self.stats = stats or ReceiverStats(clock)
        self.claimer = claimer
        self.rejections = rejections
        self.refusals = Refusals(sources, self.stats)
        self.inline: Inline | None = None
        self.clock = clock
        self.verifying = Verifying(limit_bytes=limit_bytes)

    def receive(self, name: str, delivery: Delivery, complete: Complete | None = None) -> Coroutine[Any, Any, Response]:
        """Answer one delivery to the address of source `name`. Raises nothing but ClientLeft.

        `complete` reads the body; without it, the delivery is complete.
        """
        if tracing.active is None:
            return self._answer(name, delivery, complete)
        return tracing.active.deliver(
            partial(self._answer, name, delivery, complete), name, delivery, known=name in self.sources
        )

    async def _answer(self, name: str, delivery: Delivery, complete: Complete | None) -> Response:
        started = self.clock.monotonic()
        try:
            source = self._find(name)
            declared = check_request(source, delivery)
            if complete is not None:
                await complete(source, delivery)
            check_body(delivery.body, source.max_body, declared)
            response = await self._take(source, delivery)
        except ClientLeft:
            raise
        except Exception as error:
            return self.refusals.answer(name, error)
        seconds = self.clock.monotonic() - started
        metrics.observe_key(("oncehook_accept_seconds", name), seconds)
        self.stats.record_ack(name, seconds)
        return response

    async def _take(self, source: Source, delivery: Delivery) -> Response:
        """The answer to a whole request, once the events in it are committed."""
        try:
            handshake, verified_by = find_unsigned(source, delivery), 0
            if handshake is None:
                verified_by = await self._verify(source, delivery)
                parsed = source.parse(delivery)
                handshake = find_signed(source, delivery)
            if handshake is not None:
                return await shake_hands(source, handshake, delivery, verified_by)
            claims = source.read(delivery, parsed)
        except Rejected as error:
            self.rejections.note(source, delivery, error)
            raise
        batch = source.split is not None and source.reader.is_batch(claims, delivery)
        if source.inline:
            return await self._work_inline(source, claims, batch)
        return accepted(claims, await self._claim(claims), source.provider.answer, batch=batch)

    def _find(self, name: str) -> Source:
        source = self.sources.get(name)
        if source is None:
            raise turned_away("unknown_source")
        return source

    async def _verify(self, source: Source, delivery: Delivery) -> int:
        """The number of the secret that verifies the delivery."""
        if source.verifier is None:
            return 0
        if source.fetches_certificates:
            await self.verifying.fetch_keys(source, source.verifier, delivery, self.clock.now())
        if len(delivery.body) <= LARGE:
            verified_by = source.verifier.verify(delivery, self.clock.now())
        else:
            verified_by = await self.verifying.run(delivery, partial(source.verifier.verify, now=self.clock.now()))
        source.uses[verified_by] += 1
        return verified_by

    async def _claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        try:
            return await self.claimer.claim(claims)
        except Unavailable as error:
            signals.record_failed_claim(claims, error)
            raise Refused(unavailable(error.retry_after)) from error

    async def _work_inline(self, source: Source, claims: list[Claim], batch: bool) -> Response:
        """Claim, run the handlers, and only then answer."""
        if self.inline is None:
            raise Unavailable("inline sources need the handlers: this process runs without them")
        seconds = self.inline.lease_seconds
        leased = [replace(c, inline_seconds=seconds) if c.status is State.PROCESSING else c for c in claims]
        return await self.inline.take(source, leased, batch=batch)
