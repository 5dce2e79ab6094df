"""uvicorn's HTTP protocol, with the two things that it lacks here: an answer in one piece, a deadline for headers."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oncehook import signals

FINAL = (b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4", b"HTTP/1.1 5")


class OneWrite:
    """A transport that sends an answer's head along with its body.

    uvicorn writes them apart and uvloop sends each at once: two system calls and two packets for every answer, and
    40 ms where the second waits for the first to be acknowledged.
    """

    __slots__ = ("_head", "_transport", "_write")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._write = transport.write
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            self._write(self._head + data)
            self._head = b""
        elif data.startswith(FINAL) and data.endswith(b"\r\n\r\n"):
            self._head = data  # a body follows, or the end
        else:
            self._write(data)

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """One connection of `oncehook serve`."""

    def connection_made(self, transport: Any) -> None:
        self.one_write = OneWrite(transport)
        super().connection_made(self.one_write)  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        self.one_write.flush()  # of an answer to HEAD, uvicorn writes no body, not even an empty one
        super().on_response_complete()


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
