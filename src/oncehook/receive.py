"""The door: capped bytes → verify → claim → ack. Raw ASGI, because every event passes here.

Until the body is complete and verified nothing is stored, parsed or queued. From then on the claim goes its way whether
or not the client still listens.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from oncehook import metrics, signals
from oncehook.ack import Header, Response, accepted, refused, unavailable
from oncehook.claim import Claimer
from oncehook.clock import SYSTEM, Clock
from oncehook.errors import Rejected, Unavailable
from oncehook.inline import Inline
from oncehook.meter import Meter
from oncehook.providers import Handshake
from oncehook.providers.handshake import IN_HANDSHAKE, answer
from oncehook.receipt import LARGE, Claim, Claimed, Delivery, State
from oncehook.rejections import RejectionLog
from oncehook.source import Source
from oncehook.verify import Verifier
from oncehook.verifying import Verifying

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CLOSE = (b"connection", b"close")
LONGEST = 10**15
MOST_HEAD, MOST_HEADERS = 64 * 1024, 200
"""The largest request head, in bytes and in headers, whatever the server allows."""
MOST_KEYS = 4
"""So many keys are fetched for one delivery; what names more is verified with those that there are."""


class Refused(Exception):
    """The delivery ends here, with this answer."""

    def __init__(self, response: Response, code: str | None = None) -> None:
        self.response = response
        self.code = code  # None: it is logged already


def turned_away(code: str, *headers: Header, message: str | None = None) -> Refused:
    """A refusal by its code, which is logged with it."""
    return Refused(refused(code, *headers, message=message), code)


class ClientLeft(Exception):
    """The client disconnected before its body was complete: there is nobody to answer, and nothing is kept."""


class Door:
    """Receives deliveries for a set of sources."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        claimer: Claimer,
        reads: "Reads",
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


# -- the request ----------------------------------------------------------------------------------------------------

_NEVER_JSON = (b"multipart/", b"image/", b"audio/", b"video/", b"font/", b"application/xml", b"text/xml", b"text/html")


def check_head(scope: Scope) -> None:
    """Reject a head that is larger than `oncehook serve` would take: other servers have other limits, or none."""
    headers = scope["headers"]
    address = scope.get("raw_path") or scope["path"]
    if len(headers) > MOST_HEADERS or size_of_head(address, headers) + len(scope.get("query_string", b"")) > MOST_HEAD:
        raise turned_away("head_too_large", CLOSE)


def size_of_head(address: bytes | str, headers: Sequence[Header]) -> int:
    """About as many bytes as a head has on the wire."""
    return len(address) + sum(len(name) + len(value) + 4 for name, value in headers)


def check_request(source: Source, delivery: Delivery) -> int | None:
    """Refuse what the request line and headers alone rule out; return the length that the client declared."""
    headers = delivery.headers
    if delivery.method not in source.methods:
        raise turned_away("method_not_allowed", (b"allow", ", ".join(source.methods).encode()), CLOSE)
    if headers.get(b"content-type", b"").lower().startswith(_NEVER_JSON):
        raise turned_away("unsupported_media_type", CLOSE)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        message = "Bodies are taken as they are signed: uncompressed."
        raise turned_away("unsupported_media_type", CLOSE, message=message)
    if source.verifier is None and (b"origin" in headers or b"sec-fetch-site" in headers):
        raise turned_away("foreign_origin", CLOSE)  # a page in a browser: no sender has these, and nothing is verified
    length = headers.get(b"content-length", b"")
    if b"transfer-encoding" in headers and (length or b"trailer" in headers):
        raise turned_away("malformed", CLOSE)  # two lengths, or trailers, which some servers take for headers
    if not length.isdigit():
        if length:
            raise turned_away("malformed", CLOSE)
        return None
    declared = int(length) if len(length) < 16 else LONGEST
    if declared > source.max_body:
        raise turned_away("too_large", CLOSE)
    return declared


class Reads:
    """The bodies that are arriving now: how long each may take, and how many bytes they may hold together.

    Senders are strangers until their body is complete, so both are bounded. One timer serves all of them.
    """

    def __init__(self, *, time_limit: float, limit_bytes: int) -> None:
        self.limit = time_limit
        self.limit_bytes = limit_bytes
        self.held = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._reading: dict[asyncio.Task[Any], float] = {}  # the oldest is first
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bodies arrive in this loop from now on; the timer of an earlier one never fires."""
        self.loop, self._timer = loop, None

    def begin(self) -> "asyncio.Task[Any]":
        loop = self.loop or asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._reading[task] = loop.time() + self.limit
        if self._timer is None:
            self._timer = loop.call_later(self.limit / 8, self._sweep, loop)
        return task

    def end(self, task: "asyncio.Task[Any]") -> bool:
        """Forget a read; False if its time was up."""
        return self._reading.pop(task, None) is not None

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, deadline in self._reading.items() if deadline <= now]:
            del self._reading[task]
            task.cancel()
        self._timer = loop.call_later(self.limit / 8, self._sweep, loop) if self._reading else None


def check_body(body: bytes, cap: int, declared: int | None) -> bytes:
    """The body, if it is as long as it was said to be and no longer than it may be."""
    if len(body) > cap:
        raise turned_away("too_large", CLOSE)
    if declared is not None and declared != len(body):
        raise turned_away("malformed", CLOSE)
    return body


async def read_capped(receive: Receive, cap: int, reads: Reads) -> bytes:
    """The whole body, or no part of it. The cap holds while it streams; the deadline is for all of it together."""
    task = reads.begin()
    try:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):  # nearly always: all at once
            body: bytes = message.get("body", b"")
            return body
        return await _read_on(message, receive, cap, reads)
    except asyncio.CancelledError:
        if reads.end(task):
            raise  # somebody else's cancel
        task.uncancel()
        raise turned_away("timeout", CLOSE) from None
    finally:
        reads.end(task)


async def _read_on(message: Message, receive: Receive, cap: int, reads: Reads) -> bytes:
    """The rest of a body that comes in parts, of which `message` is the first."""
    chunks: list[bytes] = []
    size = held = 0
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > cap:
                raise turned_away("too_large", CLOSE)
            if not message.get("more_body", False):
                return b"".join([*chunks, chunk]) if chunks else chunk
            held += len(chunk)
            reads.held += len(chunk)
            if reads.held > reads.limit_bytes:
                raise Unavailable("the bodies that are arriving hold too many bytes", retry_after=2)
            chunks.append(chunk)
            message = await receive()
    finally:
        reads.held -= held


async def respond(send: Send, response: Response) -> None:
    """One complete answer."""
    status, body, headers = response
    length = () if status == 204 else ((b"content-length", str(len(body)).encode()),)  # 204 has no body to measure
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})
