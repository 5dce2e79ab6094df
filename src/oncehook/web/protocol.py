"""uvicorn's HTTP protocol with what it lacks for the door: a short way for a delivery, and a deadline for headers."""

import asyncio
from functools import lru_cache, partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from oncehook import signals
from oncehook.ack import Header, Response
from oncehook.receipt import Delivery
from oncehook.receive import CLOSE
from oncehook.web.app import PREFIX, Service

DOOR = PREFIX.encode()


class Taken:
    """A delivery that is being taken, where uvicorn keeps the request that a connection is at."""

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

    held: list[bytes] | None = None  # the body of a request that may go the short way, as far as it is here

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.inbox = self.app.inbox if isinstance(self.app, Service) else None
        self.nobody = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.held is not None:  # the rest is still to come, and has a deadline, a cap and a client that may leave
            self._go_the_long_way()

    def on_headers_complete(self) -> None:
        if self._may_be_short():
            self.held = []
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.held is None:
            super().on_body(body)
        else:
            self.held.append(body)

    def on_message_complete(self) -> None:
        if self.held is not None:
            if self._take(b"".join(self.held)):
                self.held = None
                return
            self._go_the_long_way()
        super().on_message_complete()

    def _may_be_short(self) -> bool:
        return (
            self.url.startswith(DOOR)
            and self.inbox is not None
            and self.inbox.enter is self.inbox.door  # else there is a span around it
            and (self.cycle is None or self.cycle.response_complete)
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and not self.parser.should_upgrade()
            and (self.limit_concurrency is None or len(self.connections) < self.limit_concurrency)
        )

    def _take(self, body: bytes) -> bool:
        path, _, query = self.url.partition(b"?")
        name = path[len(DOOR) :].rstrip(b"/").decode("latin-1")
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        taken = Taken(keep_alive, self.nobody)
        before, self.cycle = self.cycle, taken  # type: ignore[assignment]
        assert self.inbox is not None
        if self.inbox.door.now(name, Delivery(body, self.headers, query=query), partial(self._answer, taken)):
            return True
        self.cycle = before
        return False

    def _go_the_long_way(self) -> None:
        held, self.held = self.held, None
        if self.transport.is_closing():
            return
        super().on_headers_complete()
        for part in held or ():
            super().on_body(part)

    def _answer(self, taken: Taken, response: Response) -> None:
        if taken.disconnected or self.transport.is_closing():  # or there is a later request, which heard of it instead
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
