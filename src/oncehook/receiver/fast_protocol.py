"""uvicorn's HTTP protocol with what it lacks for the door: a short way for a delivery, and limits for request heads.

A head has a deadline and at most MOST_HEAD bytes in MOST_HEADERS headers. Counting costs a request two compares: a head
that arrives in one piece of at most MOST_HEAD bytes is not measured at all, and longer pieces are fed in parts.
"""

import asyncio
from collections.abc import Coroutine
from functools import lru_cache, partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from oncehook.model.receipt import LARGE, Delivery
from oncehook.observability import signals
from oncehook.receiver.ack import Header, Response
from oncehook.receiver.request import CLOSE, MOST_HEAD, MOST_HEADERS, PREFIX, size_of_head, turned_away

DOOR = PREFIX.encode()


class HeadTooLarge(Exception):
    """Raised inside the parser, which stops there."""


class Taken:
    """A delivery that is being taken, where uvicorn keeps the request that a connection is at."""

    more_body = False

    __slots__ = ("disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self, keep_alive: bool, message_event: asyncio.Event) -> None:
        self.keep_alive = keep_alive
        self.message_event = message_event  # uvicorn sets it when the connection is lost; nobody waits for it
        self.disconnected = self.response_complete = False


class Protocol(HttpToolsProtocol):
    """One connection of `oncehook serve`.

    A delivery that came as a whole, for a source that asks for nothing unusual, is given to the door at once, and its
    answer is written in one piece when it is committed: no task, no ASGI message. Everything else goes uvicorn's way.
    """

    is_short = False  # the request may go the short way
    in_head = False  # a request has begun, and its head is not complete
    room = MOST_HEAD  # bytes that may follow before a head is complete, or a body goes on
    is_rejected = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.receiver = getattr(self.app, "receiver", None)  # the service has one; any other app goes uvicorn's way
        self.nobody = asyncio.Event()
        self.parts: list[bytes] = []  # of the body, out of the data that is being fed

    def data_received(self, data: bytes) -> None:
        while len(data) > self.room:
            part, data = data[: self.room], data[self.room :]
            self.data_received(part)
            if self.transport.is_closing():
                return
        room, self.room = self.room, 0  # a request that begins, a head that ends and a body that goes on reset it
        super().data_received(data)
        if self.is_short:  # the rest is still to come, and has a deadline, a cap and a client that may leave
            self._go_the_long_way()
        if self.parts:
            self._pass_on()
        if not self.room:  # more of a head or of trailers, or what stands between chunks
            self.room = room - len(data)
        elif self.in_head:
            self.room -= size_of_head(self.url, self.headers)
        if self.room <= 0:
            self._reject_head()

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
        if self._may_be_short():
            self.is_short = True
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.room = MOST_HEAD
        self.parts.append(body)

    def on_message_complete(self) -> None:
        if self.is_short:
            if self._take(b"".join(self.parts)):
                self.is_short, self.parts = False, []
                return
            self._go_the_long_way()
        if self.parts:
            self._pass_on()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser stops: the request is not HTTP, or its head is too large."""
        if self.is_rejected:
            self._reject_head()
        elif not self._is_answered() and (self.pipeline or not self.cycle.more_body):
            self.transport.close()  # an earlier request would take the 400 for its own answer
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def _reject_head(self) -> None:
        """Answer 431 and close. An earlier request that is not answered yet would take the 431 for its own answer."""
        if self.transport.is_closing():
            return
        if self.receiver is not None and self._is_answered():
            self.cycle = taken = Taken(False, self.nobody)  # type: ignore[assignment]
            self._answer(taken, self.receiver.refusals.answer("unknown", turned_away("head_too_large", CLOSE)))
        self.transport.close()

    def _is_answered(self) -> bool:
        """Whether no request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def _may_be_short(self) -> bool:
        return (
            self.url.startswith(DOOR)
            and self.receiver is not None
            and self._is_answered()
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and not self.parser.should_upgrade()
            and (self.limit_concurrency is None or len(self.connections) < self.limit_concurrency)
        )

    def _take(self, body: bytes) -> bool:
        """Receive a complete delivery without a task; False if its source needs more than a commit to be awaited."""
        receiver = self.receiver
        assert receiver is not None
        address, _, query = self.url.partition(b"?")
        path = address.decode("latin-1")
        name = path[len(PREFIX) :].rstrip("/")
        source = receiver.sources.get(name)
        if source is None or not source.is_plain or len(body) > LARGE:
            return False
        delivery = Delivery(body, self.headers, path=path, query=query, scheme=self.scheme or "http")
        if b"host" not in delivery.headers or delivery.repeated:
            return False  # the service checks such heads
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        taken = Taken(keep_alive, self.nobody)
        self.cycle = taken  # type: ignore[assignment]
        self._step(receiver.receive(name, delivery), taken)
        return True

    def _step(self, receiving: "Coroutine[Any, Any, Response]", taken: Taken, _: object = None) -> None:
        """Run the road up to the future of its commit, or to its answer."""
        try:
            future = receiving.send(None)
        except StopIteration as finished:
            self._answer(taken, finished.value)
        else:
            future.add_done_callback(partial(self._step, receiving, taken))

    def _go_the_long_way(self) -> None:
        self.is_short = False
        if not self.transport.is_closing():
            super().on_headers_complete()

    def _pass_on(self) -> None:
        """Give uvicorn the parts as one: it adds each to what it has, and a body may be thousands of tiny chunks."""
        body, self.parts = b"".join(self.parts), []
        if not self.transport.is_closing():
            super().on_body(body)

    def _answer(self, taken: Taken, response: Response) -> None:
        if self.transport.is_closing():  # the client left
            return
        status, body, headers = response
        parts = [_head(status, headers)]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        if not taken.keep_alive and CLOSE not in headers:
            parts.append(b"connection: close\r\n")
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        parts += (length, b"\r\n", body)
        taken.response_complete = True
        self.transport.write(b"".join(parts))
        if not taken.keep_alive or CLOSE in headers:
            self.transport.close()
        self.on_response_complete()


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
