"""uvicorn's HTTP protocol with limits for request heads, which uvicorn lacks.

A head has a deadline and at most MOST_HEAD bytes in MOST_HEADERS headers. Counting costs a request two compares: a head
that arrives in one piece of at most MOST_HEAD bytes is not measured at all, and longer pieces are fed in parts.

This leans on attributes of uvicorn's protocol; `protocol_check` runs requests through it before `oncehook serve` does.
"""

import asyncio
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from oncehook.observability import signals
from oncehook.receiver.ack import Header, Response
from oncehook.receiver.request import CLOSE, MOST_HEAD, MOST_HEADERS, size_of_head, turned_away
from oncehook.receiver.steps import Receiver


class HeadTooLarge(Exception):
    """Raised inside the parser, which stops there."""


class Exchange:
    """A request that is answered without ASGI, where uvicorn keeps the request that a connection is at."""

    more_body = False

    __slots__ = ("disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self, keep_alive: bool, message_event: asyncio.Event) -> None:
        self.keep_alive = keep_alive
        self.message_event = message_event  # uvicorn sets it when the connection is lost; nothing waits for it
        self.disconnected = self.response_complete = False


class LimitedProtocol(HttpToolsProtocol):
    """One connection of `oncehook serve`. Every request goes through ASGI."""

    in_head = False  # a request has begun, and its head is not complete
    room = MOST_HEAD  # bytes that may follow before a head is complete, or a body goes on
    is_rejected = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.receiver: Receiver | None = getattr(self.app, "receiver", None)  # the service has one
        self.disconnection = asyncio.Event()
        self.parts: list[bytes] = []  # of the body, out of the data that is being fed

    def data_received(self, data: bytes) -> None:
        while len(data) > self.room:
            part, data = data[: self.room], data[self.room :]
            self.data_received(part)
            if self.transport.is_closing():
                return
        room, self.room = self.room, 0  # a request that begins, a head that ends and a body that goes on reset it
        super().data_received(data)
        self.end_of_data()
        if not self.room:  # more of a head or of trailers, or what stands between chunks
            self.room = room - len(data)
        elif self.in_head:
            self.room -= size_of_head(self.url, self.headers)
        if self.room <= 0:
            self._reject_head()

    def end_of_data(self) -> None:
        """The data that arrived is parsed."""
        if self.parts:
            self._pass_on()

    def on_message_begin(self) -> None:
        self.room = MOST_HEAD
        self.in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer, which counts for nothing
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        in_parts, self.room = not self.room, MOST_HEAD
        if len(self.headers) > MOST_HEADERS or (in_parts and size_of_head(self.url, self.headers) > MOST_HEAD):
            self.is_rejected = True
            raise HeadTooLarge
        self.in_head = False
        self.begin_request()

    def begin_request(self) -> None:
        """The head is complete: start the ASGI app."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.room = MOST_HEAD
        self.parts.append(body)

    def on_message_complete(self) -> None:
        if self.parts:
            self._pass_on()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser stops: the request is not HTTP, or its head is too large."""
        if self.is_rejected:
            self._reject_head()
        elif not self.is_answered() and (self.pipeline or not self.cycle.more_body):
            self.transport.close()  # an earlier request would take the 400 for its own answer
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def is_answered(self) -> bool:
        """Whether no request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def answer(self, exchange: Exchange, response: Response) -> None:
        """Write a whole answer in one piece."""
        if self.transport.is_closing():  # the client left
            return
        status, body, headers = response
        parts = [_head(status, headers)]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        if not exchange.keep_alive and CLOSE not in headers:
            parts.append(b"connection: close\r\n")
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        parts += (length, b"\r\n", body)
        exchange.response_complete = True
        self.transport.write(b"".join(parts))
        if not exchange.keep_alive or CLOSE in headers:
            self.transport.close()
        self.on_response_complete()

    def _reject_head(self) -> None:
        """Answer 431 and close. An earlier request that is not answered yet would take the 431 for its own answer."""
        if self.transport.is_closing():
            return
        if self.receiver is not None and self.is_answered():
            self.cycle = exchange = Exchange(False, self.disconnection)  # type: ignore[assignment]
            self.answer(exchange, self.receiver.refusals.answer("unknown", turned_away("head_too_large", CLOSE)))
        self.transport.close()

    def _pass_on(self) -> None:
        """Give uvicorn the parts as one: it adds each to what it has, and a body may be thousands of tiny chunks."""
        body, self.parts = b"".join(self.parts), []
        if not self.transport.is_closing():
            super().on_body(body)


@lru_cache(64)
def _head(status: int, headers: tuple[Header, ...]) -> bytes:
    """The first lines of an answer; its headers are all our own."""
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    head: bytes = STATUS_LINE[status] + lines
    return head


async def close_unfinished(connections: Any, limit: float) -> None:
    """Close connections that for so long have begun no request, or not completed its header; until cancelled.

    uvicorn's protocol says with `cycle` which request a connection is at. Looking now and then costs a request nothing.
    """
    loop = asyncio.get_running_loop()
    waiting: dict[Any, tuple[Any, float]] = {}  # connection → its last request, and since when there is no other
    while True:
        await asyncio.sleep(limit / 4)
        now = loop.time()
        idle = {c: c.cycle for c in connections if c.cycle is None or c.cycle.response_complete}
        waiting = {c: waiting[c] if waiting.get(c, (c,))[0] is last else (last, now) for c, last in idle.items()}
        late = [connection for connection, (_, since) in waiting.items() if now - since >= limit]
        for connection in late:
            connection.transport.close()
        if late:
            signals.emit("connections_closed", count=len(late), detail="their request was not complete in time")
