"""uvicorn's HTTP protocol with limits for request heads, which uvicorn lacks.

A head has a deadline and at most MAX_HEAD_BYTES bytes in MAX_HEADERS headers. Counting costs each request two
comparisons. A head that arrives in one piece of at most MAX_HEAD_BYTES is not measured, and longer pieces are split.

This class depends on attributes of uvicorn's protocol. `protocol_check` runs requests through it before
`oncehook serve` listens.
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from oncehook.observability import signals
from oncehook.receiver.ack import Header, Response
from oncehook.receiver.request import CLOSE, MAX_HEAD_BYTES, MAX_HEADERS, RequestRejected, head_size
from oncehook.receiver.steps import Receiver


class StopParsing(Exception):
    """Raised inside the parser: the head is too large, or the connection is closing and nothing more is received."""


class DirectCycle:
    """A request that is answered without ASGI. It replaces uvicorn's request-response cycle on the connection."""

    more_body = False

    __slots__ = ("disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self, keep_alive: bool, message_event: asyncio.Event) -> None:
        self.keep_alive = keep_alive
        self.message_event = message_event  # uvicorn sets it when the connection is lost; nothing awaits it
        self.disconnected = self.response_complete = False


class LimitedProtocol(HttpToolsProtocol):
    """One connection of `oncehook serve`. Every request goes through ASGI."""

    in_head = False  # a request has started, and its head is incomplete
    room = MAX_HEAD_BYTES  # bytes that may arrive before the head is complete or the body continues
    is_rejected = False
    last_response: Callable[[], None] | None = None  # waits for the responses to earlier requests

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.receiver: Receiver | None = getattr(self.app, "receiver", None)  # the service has one
        self.disconnection = asyncio.Event()
        self.parts: list[bytes] = []  # parts of the body in the data that is being parsed

    def data_received(self, data: bytes) -> None:
        if self.last_response is not None:
            return  # what follows a request that is not HTTP cannot be read
        while len(data) > self.room:
            part, data = data[: self.room], data[self.room :]
            self.data_received(part)
            if self.transport.is_closing() or self.last_response is not None:
                return
        room, self.room = self.room, 0  # reset by a new request, a complete head and body data
        super().data_received(data)
        self.end_of_data()
        if not self.room:  # more of a head, of trailers or of the framing between chunks
            self.room = room - len(data)
        elif self.in_head:
            self.room -= head_size(self.url, self.headers)
        if self.room <= 0:
            self._end(self._reject_head)

    def end_of_data(self) -> None:
        """Called when all data that arrived is parsed."""
        if self.parts:
            self._forward_body()

    def on_message_begin(self) -> None:
        self.room = MAX_HEAD_BYTES
        self.in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer, which is ignored
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            raise StopParsing
        in_parts, self.room = not self.room, MAX_HEAD_BYTES
        if len(self.headers) > MAX_HEADERS or (in_parts and head_size(self.url, self.headers) > MAX_HEAD_BYTES):
            self.is_rejected = True
            raise StopParsing
        self.in_head = False
        self.begin_request()

    def begin_request(self) -> None:
        """Start the ASGI app for a request whose head is complete."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.room = MAX_HEAD_BYTES
        self.parts.append(body)

    def on_message_complete(self) -> None:
        if self.parts:
            self._forward_body()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called when the parser stops because the request is not HTTP or its head is too large."""
        self._end(self._reject_head if self.is_rejected else partial(super().send_400_response, msg))

    def on_response_complete(self) -> None:
        if self.last_response is not None and not (self.pipeline and not self.pipeline[-1][0].more_body):
            self.pipeline.clear()  # the request that is not HTTP, if its head was complete
            self._end(self.last_response)
        super().on_response_complete()

    def is_answered(self) -> bool:
        """Whether no request waits for its response."""
        return self.cycle is None or self.cycle.response_complete

    def answer(self, cycle: DirectCycle, response: Response) -> None:
        """Write a response in one piece."""
        if self.transport.is_closing():  # the client disconnected
            return
        status, body, headers = response
        parts = [_head(status, headers)]
        defaults = self.server_state.default_headers
        for name, value in defaults:
            parts += (name, b": ", value, b"\r\n")
        is_last = not cycle.keep_alive or CLOSE in headers or CLOSE in defaults  # a draining server closes connections
        if is_last and CLOSE not in headers and CLOSE not in defaults:
            parts.append(b"connection: close\r\n")
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        parts += (length, b"\r\n", body)
        cycle.response_complete = True
        self.transport.write(b"".join(parts))
        if is_last:
            self.transport.close()
        self.on_response_complete()

    def _end(self, respond: Callable[[], None]) -> None:
        """Close the connection with this response, after the responses to earlier requests.

        Otherwise the client would read it as the response to an earlier request.
        """
        if self.transport.is_closing():
            return
        if not self.is_answered() and (self.pipeline or not self.cycle.more_body):
            self.last_response = respond
            self.flow.pause_reading()
        else:
            respond()

    def _reject_head(self) -> None:
        """Answer 431 and close. If the end of a request is too long, only close."""
        if self.receiver is not None and self.is_answered():
            self.cycle = cycle = DirectCycle(False, self.disconnection)  # type: ignore[assignment]
            self.answer(
                cycle, self.receiver.errors.respond("unknown", RequestRejected.with_code("head_too_large", CLOSE))
            )
        self.transport.close()

    def _forward_body(self) -> None:
        """Pass the parts to uvicorn as one: it concatenates each call, and a body may have thousands of tiny chunks."""
        body, self.parts = b"".join(self.parts), []
        if not self.transport.is_closing():
            super().on_body(body)


@lru_cache(64)
def _head(status: int, headers: tuple[Header, ...]) -> bytes:
    """The status line and headers of a response, cached: the receiver sends few combinations of them."""
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    head: bytes = STATUS_LINE[status] + lines
    return head


async def close_unfinished(connections: Any, limit: float) -> None:
    """Close connections whose next request head is not complete within `limit` seconds. Runs until cancelled.

    The attribute `cycle` of uvicorn's protocol is the last request of a connection. Checking it every `limit / 4`
    seconds adds no cost to a request.
    """
    loop = asyncio.get_running_loop()
    waiting: dict[Any, tuple[Any, float]] = {}  # connection → its last request, and since when it is idle
    while True:
        await asyncio.sleep(limit / 4)
        now = loop.time()
        idle = {c: c.cycle for c in connections if c.cycle is None or c.cycle.response_complete}
        waiting = {c: waiting[c] if waiting.get(c, (c,))[0] is last else (last, now) for c, last in idle.items()}
        late = [connection for connection, (_, since) in waiting.items() if now - since >= limit]
        for connection in late:
            connection.transport.close()
        if late:
            signals.emit("connections_closed", count=len(late), detail="they sent no complete request head in time")
