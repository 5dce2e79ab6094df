"""The door: capped bytes → verify → claim → ack. Raw ASGI, because every event passes here.

Until the body is complete and verified nothing is stored, parsed or queued. From then on the claim goes its way whether
or not the client still listens.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import Rejected, Unavailable
from oncehook.model.receipt import LARGE, Claim, Claimed, Delivery, State
from oncehook.observability import metrics, signals
from oncehook.observability.meter import Meter
from oncehook.providers.definition import Handshake
from oncehook.providers.handshake import IN_HANDSHAKE, answer
from oncehook.providers.source import Source
from oncehook.providers.verify import Verifier
from oncehook.receiver.ack import Response, accepted, refused, unavailable
from oncehook.receiver.claim import Claimer
from oncehook.receiver.inline import Inline
from oncehook.receiver.rejections import RejectionLog
from oncehook.receiver.request import (
    CLOSE,
    ClientLeft,
    Reads,
    Receive,
    Refused,
    Scope,
    Send,
    check_body,
    check_head,
    check_request,
    read_capped,
    respond,
    turned_away,
)
from oncehook.receiver.verifying import Verifying

MOST_KEYS = 4
"""So many keys are fetched for one delivery; what names more is verified with those that there are."""


class Door:
    """Receives deliveries for a set of sources."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        claimer: Claimer,
        reads: Reads,
        rejections: RejectionLog,
        clock: Clock = SYSTEM,
        meter: Meter | None = None,
    ) -> None:
        self.sources = sources
        self.meter = meter or Meter(clock)
        self.claimer = claimer
        self.reads = reads
        self.rejections = rejections
        self.inline: Inline | None = None
        self.clock = clock
        self.verifying = Verifying(limit_bytes=reads.limit_bytes)

    def start(self) -> None:
        """Deliveries come in the loop that runs now. It is kept: asking for it is a system call in Python 3.11."""
        self.claimer.loop = asyncio.get_running_loop()
        self.reads.start(self.claimer.loop)

    async def __call__(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to the address of source `name`. Every way through here ends in exactly one answer."""
        started = self.clock.monotonic()
        try:
            response = await self.receive(name, scope, receive)
            self.acked(name, started)
        except ClientLeft:
            return
        except Exception as error:
            response = self.refusal(name, error)
        await respond(send, response)

    def now(self, name: str, delivery: Delivery, answer: Callable[[Response], None]) -> bool:
        """Take a delivery that is all here, with nothing awaited but its commit; `answer` is called once.

        False, and nothing was done, if it is for a source that needs more than that.
        """
        source = self.sources.get(name)
        if source is None or not source.is_plain or len(delivery.body) > LARGE:
            return False
        started = self.clock.monotonic()
        try:
            check_body(delivery.body, source.max_body, check_request(source, delivery))
            claims = self._read(source, delivery)
            waiting = Waiting(self, source, delivery, claims, started, answer)
        except Exception as error:
            answer(self.refusal(name, error))
            return True
        if not claims:
            waiting.set_result([])
            return True
        try:
            self.claimer.submit(claims, waiting)
        except Unavailable as error:
            waiting.set_exception(error)
        return True

    def acked(self, name: str, started: float) -> None:
        took = self.clock.monotonic() - started
        metrics.observe_key(("oncehook_accept_seconds", name), took)
        self.meter.acked(name, took)

    def refusal(self, name: str, error: Exception) -> Response:
        """The answer to a delivery that was not taken, which is counted and logged here unless it is already."""
        if isinstance(error, Refused):
            if error.code is not None:
                known = name if name in self.sources else "unknown"
                self._refused(known, error.code, "refused before it was read and verified")
            return error.response
        if isinstance(error, Rejected):
            self._refused(name, error.reason, error.detail)
            return refused(error.reason)
        if isinstance(error, Unavailable):
            signals.unavailable(name, error.detail)
            return unavailable(error.retry_after)
        where = "".join(traceback.format_tb(error.__traceback__))
        signals.emit("door_failed", source=name, error=type(error).__name__, traceback=where)
        return unavailable(5)  # a bug of ours: the sender keeps the event and tries again

    def _refused(self, source: str, reason: str, detail: str) -> None:
        signals.rejected(source, reason, detail)
        self.meter.refused(source, reason, detail)

    async def receive(self, name: str, scope: Scope, receive: Receive) -> Response:
        check_head(scope)
        source = self._source(name)
        delivery = Delivery(b"", scope["headers"], method=scope["method"], query=scope.get("query_string", b""))
        declared = check_request(source, delivery)
        if source.proxies is not None:
            delivery.address = source.proxies.address(scope, delivery)
        delivery.body = check_body(await read_capped(receive, source.max_body, self.reads), source.max_body, declared)
        try:
            return await self._take(source, delivery)
        except Rejected as error:
            self.rejections.note(source, delivery, error)
            raise

    async def _take(self, source: Source, delivery: Delivery) -> Response:
        """The answer to a whole request, once what is in it is committed."""
        if source.unsigned_handshakes:
            unsigned = source.handshake_of(delivery, source.unsigned_handshakes)
            if unsigned is not None:
                return await self._shake_hands(source, unsigned, delivery)
            if delivery.method != "POST":
                raise turned_away("method_not_allowed", (b"allow", b"POST"), CLOSE)
        if source.verifier is not None and source.fetches_certificates:
            await self._fetch_keys(source, source.verifier, delivery)
        verified_by = await self._verify(source, delivery)
        parsed = source.parse(delivery)
        if source.handshakes:
            handshake = source.handshake_of(delivery, source.handshakes)
            if handshake is not None:
                return await self._shake_hands(source, handshake, delivery, verified_by)
        claims = source.read(delivery, parsed)
        batch = source.split is not None and source.is_batch(claims, delivery)
        if source.inline:
            return await self._take_inline(source, claims, batch)
        try:
            claimed = await self.claimer.claim(claims)
        except Unavailable as error:
            signals.unclaimed(claims, error)
            raise Refused(unavailable(error.retry_after)) from error
        return accepted(claims, claimed, source.provider.answer, batch=batch)

    async def _verify(self, source: Source, delivery: Delivery) -> int:
        if source.verifier is None:
            return 0
        verify = partial(source.verifier.verify, now=self.clock.now())
        verified_by = await self.verifying.run(delivery, verify)
        source.uses[verified_by] += 1
        return verified_by

    def _read(self, source: Source, delivery: Delivery) -> list[Claim]:
        """The claims of a delivery for a plain source."""
        try:
            if source.verifier is not None:
                source.uses[source.verifier.verify(delivery, self.clock.now())] += 1
            return source.read(delivery, source.parse(delivery))
        except Rejected as error:
            self.rejections.note(source, delivery, error)
            raise

    async def _take_inline(self, source: Source, claims: list[Claim], batch: bool) -> Response:
        if self.inline is None:
            raise Unavailable("inline sources need the handlers: this process runs without them")
        for claim in claims:
            if claim.status is State.PROCESSING:
                claim.inline_seconds = self.inline.lease_seconds
        return await self.inline.take(source, claims, batch=batch)

    def _source(self, name: str) -> Source:
        source = self.sources.get(name)
        if source is None:
            raise turned_away("unknown_source")
        return source

    async def _fetch_keys(self, source: Source, verifier: Verifier, delivery: Delivery) -> None:
        find = partial(verifier.certificate_wanted, now=self.clock.now())
        for _ in range(MOST_KEYS):
            wanted = await self.verifying.run(delivery, find)
            if wanted is None or not await source.certificates.ensure(wanted):
                break
        source.certificates.renew()

    async def _shake_hands(
        self, source: Source, handshake: Handshake, delivery: Delivery, verified_by: int = 0
    ) -> Response:
        def offer(secret: str) -> None:
            signals.emit("secret_offered", source=source.name, secret=secret)

        try:
            response = await answer(handshake, delivery, source.body_of(delivery), source.host(offer, verified_by))
        except Rejected as error:
            if handshake.kind == "secret":
                delivery.body = b""  # what it offers is nobody's to keep
            raise Rejected(error.reason, IN_HANDSHAKE + error.detail) from None
        signals.emit("handshake", source=source.name, kind=handshake.kind)
        return response


class Waiting:
    """A delivery whose claims are under way, for which no task waits."""

    __slots__ = ("_answer", "_claims", "_delivery", "_door", "_is_done", "_source", "_started")

    def __init__(
        self,
        door: Door,
        source: Source,
        delivery: Delivery,
        claims: Sequence[Claim],
        started: float,
        answer: Callable[[Response], None],
    ) -> None:
        self._door = door
        self._source = source
        self._delivery = delivery
        self._claims = claims
        self._started = started
        self._answer = answer
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, claimed: list[Claimed]) -> None:
        source, claims = self._source, self._claims
        try:
            batch = source.split is not None and source.is_batch(claims, self._delivery)
            response = accepted(claims, claimed, source.provider.answer, batch=batch)
            self._door.acked(source.name, self._started)
        except Exception as error:
            response = self._door.refusal(source.name, error)
        self._tell(response)

    def set_exception(self, error: Unavailable) -> None:
        signals.unclaimed(self._claims, error)
        self._tell(unavailable(error.retry_after))

    def _tell(self, response: Response) -> None:
        self._is_done = True
        try:
            self._answer(response)
        except Exception as error:  # whoever shares the commit is not to hear of it
            self._door.refusal(self._source.name, error)
