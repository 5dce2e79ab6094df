"""HTTP requests before verification: the limits of heads and bodies, and sending a response."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Unavailable
from oncehook.providers.source import Source
from oncehook.receiver.ack import Header, Response, rejected_response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CLOSE = (b"connection", b"close")
MAX_DECLARED_LENGTH = 10**15
MAX_HEAD_BYTES, MAX_HEADERS = 64 * 1024, 200
"""The largest request head, in bytes and in headers. The server may have a lower limit."""


PREFIX = "/webhooks/"
"""The path prefix for deliveries. The name of a source follows it."""


class RequestRejected(Exception):
    """The receiver ends a delivery early, with this response."""

    def __init__(self, response: Response, code: str | None = None) -> None:
        self.response = response
        self.code = code  # None: the rejection is already logged

    @classmethod
    def with_code(cls, code: str, *headers: Header, message: str | None = None) -> "RequestRejected":
        """A rejection with the response of an error code. The receiver logs it with that code."""
        return cls(rejected_response(code, *headers, message=message), code)


class ClientDisconnected(Exception):
    """The client disconnected before its body was complete. No response is sent, and nothing is stored."""


_NEVER_JSON = (b"multipart/", b"image/", b"audio/", b"video/", b"font/", b"application/xml", b"text/xml", b"text/html")


def check_head(scope: Scope) -> None:
    """Reject a head that is larger than `oncehook serve` accepts. Other servers have other limits, or none."""
    headers = scope["headers"]
    address = scope.get("raw_path") or scope["path"]
    if len(headers) > MAX_HEADERS or head_size(address, headers) + len(scope.get("query_string", b"")) > MAX_HEAD_BYTES:
        raise RequestRejected.with_code("head_too_large", CLOSE)


def head_size(address: bytes | str, headers: Sequence[Header]) -> int:
    """The approximate size of a head on the wire, in bytes."""
    return len(address) + sum(len(name) + len(value) + 4 for name, value in headers)


def check_request(source: Source, delivery: Delivery) -> int | None:
    """Reject a request by its request line and headers alone. Returns the content length that the client declared."""
    headers = delivery.headers
    if delivery.method not in source.methods:
        if source.is_queue_only:
            raise RequestRejected.with_code("unknown_source", CLOSE)
        if source.needs_tenant:  # this address accepts no method
            raise RequestRejected.with_code("tenant_missing", CLOSE)
        raise RequestRejected.with_code("method_not_allowed", (b"allow", ", ".join(source.methods).encode()), CLOSE)
    if headers.get(b"content-type", b"").lower().startswith(_NEVER_JSON):
        raise RequestRejected.with_code("unsupported_media_type", CLOSE)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        message = "Send the body uncompressed: signatures are verified over the raw body."
        raise RequestRejected.with_code("unsupported_media_type", CLOSE, message=message)
    if source.verifier is None and (b"origin" in headers or b"sec-fetch-site" in headers):
        raise RequestRejected.with_code(
            "foreign_origin", CLOSE
        )  # a browser sets these headers; without a signature any web page could deliver
    length = headers.get(b"content-length", b"")
    if b"transfer-encoding" in headers and (length or b"trailer" in headers):
        raise RequestRejected.with_code(
            "malformed", CLOSE
        )  # two lengths, or trailers, which some servers treat as headers
    if not length.isdigit():
        if length:
            raise RequestRejected.with_code("malformed", CLOSE)
        return None
    declared = int(length) if len(length) < 16 else MAX_DECLARED_LENGTH
    if declared > source.max_body:
        raise RequestRejected.with_code("too_large", CLOSE)
    return declared


class BodyReadLimits:
    """Bounds the bodies that are being read: the time for each, and the bytes of all together.

    A sender is not verified until its body is complete. One timer serves all deadlines.
    """

    def __init__(self, *, time_limit: float, limit_bytes: int) -> None:
        self.time_limit = time_limit
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._deadlines: dict[asyncio.Task[Any], float] = {}  # the earliest is first
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read bodies in this loop from now on. The timer of an earlier loop never fires."""
        self.loop, self._timer = loop, None

    def begin(self) -> "asyncio.Task[Any]":
        """Start the deadline for the current task, which is cancelled when its time is up."""
        loop = self.loop or asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._deadlines[task] = loop.time() + self.time_limit
        if self._timer is None:
            self._timer = loop.call_later(self.time_limit / 8, self._cancel_late, loop)
        return task

    def end(self, task: "asyncio.Task[Any]") -> bool:
        """End a read. Returns False if its time was up."""
        return self._deadlines.pop(task, None) is not None

    def _cancel_late(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[task]
            task.cancel()
        self._timer = loop.call_later(self.time_limit / 8, self._cancel_late, loop) if self._deadlines else None


def check_body(body: bytes, max_body: int, declared: int | None) -> bytes:
    """Return the body if it has the declared length and is not too large."""
    if len(body) > max_body:
        raise RequestRejected.with_code("too_large", CLOSE)
    if declared is not None and declared != len(body):
        raise RequestRejected.with_code("malformed", CLOSE)
    return body


async def read_body(receive: Receive, max_body: int, limits: BodyReadLimits) -> bytes:
    """Read the whole body. The size limit applies while it streams; the deadline applies to the whole body."""
    task = limits.begin()
    try:
        message = await receive()
        if message["type"] == "http.request" and not message.get(
            "more_body", False
        ):  # almost always: the body is complete
            body: bytes = message.get("body", b"")
            return body
        return await _read_remaining(message, receive, max_body, limits)
    except asyncio.CancelledError:
        if limits.end(task):
            raise  # not the deadline: the task itself was cancelled
        task.uncancel()
        raise RequestRejected.with_code("timeout", CLOSE) from None
    finally:
        limits.end(task)


async def _read_remaining(message: Message, receive: Receive, max_body: int, limits: BodyReadLimits) -> bytes:
    """Read a body that arrives in parts. `message` is the first part."""
    chunks: list[bytes] = []
    size = held = 0
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > max_body:
                raise RequestRejected.with_code("too_large", CLOSE)
            if not message.get("more_body", False):
                return b"".join([*chunks, chunk]) if chunks else chunk
            held += len(chunk)
            limits.held_bytes += len(chunk)
            if limits.held_bytes > limits.limit_bytes:
                raise Unavailable("too many bytes of incomplete bodies are in memory", retry_after=2)
            chunks.append(chunk)
            message = await receive()
    finally:
        limits.held_bytes -= held


async def respond(send: Send, response: Response) -> None:
    """Send one complete response."""
    status, body, headers = response
    length = () if status == 204 else ((b"content-length", str(len(body)).encode()),)  # a 204 has no body
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})
