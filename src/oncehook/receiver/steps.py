"""The steps of a delivery: check → verify → read → claim → ack. Every delivery takes these steps.

`asgi` and `fast_protocol` are two adapters to them. Until the body is complete and verified, nothing is stored, parsed
or queued. From then on the claim is committed even if the client disconnects.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim, Claimed
from oncehook.model.delivery import LARGE, Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.model.lease import first_lease
from oncehook.model.states import State
from oncehook.observability import metrics, signals, tracing
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.providers.source import Source
from oncehook.receiver.ack import Response, accepted_response, published_response, unavailable_response
from oncehook.receiver.claim import Claimer, ClaimStep
from oncehook.receiver.error_responses import ErrorResponses
from oncehook.receiver.handshakes import answer_handshake, find_signed, find_unsigned
from oncehook.receiver.inline import InlineReceiver
from oncehook.receiver.publish import PublishStep
from oncehook.receiver.rejection_samples import RejectionSampleWriter
from oncehook.receiver.request import CLOSE, ClientDisconnected, RequestRejected, check_body, check_request
from oncehook.receiver.verification import VerificationThread
from oncehook.tenants.cache import TenantCache

Complete = Callable[[Source, Delivery], Awaitable[None]]
"""Reads the body of a delivery, and the other parts of the request that its source needs."""


class Receiver:
    """Receives deliveries for a set of sources."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        claimer: Claimer,
        rejection_samples: RejectionSampleWriter,
        *,
        limit_bytes: int,
        clock: Clock = SYSTEM,
        stats: ReceiverStats | None = None,
        tenants: Mapping[str, TenantCache] | None = None,
    ) -> None:
        self.sources = sources
        self.tenants = {} if tenants is None else tenants
        self.stats = stats or ReceiverStats(clock)
        self.claimer = claimer
        self.claims: ClaimStep = claimer  # what queued events go through; optional parts wrap it
        self.inline_claims: ClaimStep = claimer  # the same for inline events
        self.rejection_samples = rejection_samples
        self.errors = ErrorResponses(sources, self.stats)
        self.inline: InlineReceiver | None = None
        self.publisher: PublishStep | None = None  # publishes the deliveries of sources with an intake
        self.clock = clock
        self.verification = VerificationThread(limit_bytes=limit_bytes)

    def receive(self, name: str, delivery: Delivery, complete: Complete | None = None) -> Coroutine[Any, Any, Response]:
        """Answer one delivery to the address of source `name`. Raises only ClientDisconnected.

        `complete` reads the body. Without it, the delivery already has its body.
        """
        if tracing.active is None:
            return self._answer(name, delivery, complete)
        source = name.partition("/")[0]
        return tracing.active.deliver(
            partial(self._answer, name, delivery, complete), source, delivery, known=source in self.sources
        )

    async def _answer(self, name: str, delivery: Delivery, complete: Complete | None) -> Response:
        started = self.clock.monotonic()
        try:
            source = self.sources.get(name)
            if source is None:
                source = await self._find_tenant(name)
                name = source.name  # metrics have no label with the tenant
            declared = check_request(source, delivery)
            if complete is not None:
                await complete(source, delivery)
            check_body(delivery.body, source.max_body, declared)
            response = await self._accept(source, delivery)
        except ClientDisconnected:
            raise
        except Exception as error:
            return self.errors.respond(name, error)
        seconds = self.clock.monotonic() - started
        metrics.observe_key(("oncehook_accept_seconds", name), seconds)
        self.stats.record_ack(name, seconds)
        return response

    async def _accept(self, source: Source, delivery: Delivery) -> Response:
        """Verify, read and claim a complete delivery, and return its response."""
        try:
            handshake, verified_by = find_unsigned(source, delivery), 0
            if handshake is None:
                verified_by = await self.verify(source, delivery, self.clock.now())
                parsed = source.parse(delivery)
                handshake = find_signed(source, delivery)
            if handshake is not None:
                return await answer_handshake(source, handshake, delivery, verified_by)
            if source.is_published and self.publisher is not None:
                self.publisher.prepare(delivery)
            claims = source.read(delivery, parsed)
        except Rejected as error:
            self.rejection_samples.note(source, delivery, error)
            raise
        batch = source.split is not None and source.reader.is_batch(claims, delivery)
        if source.inline:
            return await self._receive_inline(source, claims, batch)
        if source.is_published and await self._publish(source, delivery, verified_by):
            return published_response(claims, source.provider.answer, batch=batch)
        outcomes = await self._claim(claims if source.encrypt is None else source.encrypt(claims))
        return accepted_response(claims, outcomes, source.provider.answer, batch=batch)

    def cached_tenant(self, name: str) -> Source | None:
        """The source of a tenant, if it needs no lookup now. `name` is the path below the mount."""
        source, _, tenant = name.partition("/")
        cache = self.tenants.get(source)
        return None if cache is None else cache.get(tenant)

    async def _find_tenant(self, name: str) -> Source:
        """The source of the tenant at the address `name`. Raises RequestRejected, or Unavailable if a lookup fails."""
        name, _, tenant = name.partition("/")
        cache = self.tenants.get(name) if tenant else None
        if cache is None:
            raise RequestRejected.with_code("unknown_source")
        source = await cache.find(tenant)
        if source is None:
            raise RequestRejected.with_code("unknown_tenant", CLOSE)
        return source

    async def verify(self, source: Source, delivery: Delivery, now: float) -> int:
        """Verify a delivery that arrived at `now`. Returns the index of the secret that verified it."""
        if source.verifier is None:
            return 0
        if source.fetches_certificates:
            await self.verification.fetch_keys(source, source.verifier, delivery, now)
        if len(delivery.body) <= LARGE:
            verified_by = source.verifier.verify(delivery, now)
        else:
            verified_by = await self.verification.run(delivery, partial(source.verifier.verify, now=now))
        source.uses[verified_by] += 1
        return verified_by

    async def _publish(self, source: Source, delivery: Delivery, verified_by: int) -> bool:
        return self.publisher is not None and await self.publisher.publish(source, delivery, verified_by)

    async def _claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        try:
            return await self.claims.claim(claims)
        except Unavailable as error:
            signals.record_failed_claim(claims, error)
            raise RequestRejected(unavailable_response(error.retry_after)) from error

    async def _receive_inline(self, source: Source, claims: list[Claim], batch: bool) -> Response:
        """Claim the events, run their handlers, then answer."""
        if self.inline is None:
            raise Unavailable("an inline source needs handlers, and this process runs without a worker")
        seconds = self.inline.lease_seconds
        leased = [
            replace(c, inline_seconds=seconds, inline_lease=first_lease()) if c.status is State.PROCESSING else c
            for c in claims
        ]
        return await self.inline.receive(source, leased, batch=batch)
