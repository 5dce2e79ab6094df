"""An HTTP request before it is verified: the limits of its head and body, and one complete answer to it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Unavailable
from oncehook.providers.source import Source
from oncehook.receiver.ack import Header, Response, refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CLOSE = (b"connection", b"close")
LONGEST = 10**15
MOST_HEAD, MOST_HEADERS = 64 * 1024, 200
"""The largest request head, in bytes and in headers, whatever the server allows."""


PREFIX = "/webhooks/"
"""Where the service receives deliveries: the path before the name of a source."""


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
