"""Feeds the bytes of a connection to a protocol of `oncehook serve`, without a socket, and reads its answers."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import uvicorn

from tests.support.edge.grammar import Connection, Pause

TURNS = 8  # of the event loop, in which the app rejects a request whose body is incomplete
SECONDS = 20.0


class MemoryTransport(asyncio.Transport):
    """A transport with the rules of asyncio's: nothing is read while it is paused, or read or written after a close."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = bytearray()
        self.changed = asyncio.Event()
        self.is_open, self.is_paused = True, False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_open:
            self.written += data
        self.changed.set()

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
            self.changed.set()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        self.changed.set()


class Wire:
    """One connection to a server of this process."""

    def __init__(self, server: uvicorn.Server) -> None:
        config = server.config
        self.protocol: Any = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=server.server_state, app_state={}
        )
        self.transport = MemoryTransport(self.protocol)

    async def send(self, connection: Connection) -> bytes:
        """Send a connection and return everything that the server wrote."""
        self.protocol.connection_made(self.transport)
        for step in connection.pieces():
            if step is Pause.SOON:
                await asyncio.sleep(0)
            elif step is Pause.QUIET:
                await self.settle()
            else:
                await self.until(lambda: not (self.transport.is_paused and self.transport.is_open))
                if not self.transport.is_open:
                    break
                self.protocol.data_received(step)
        if not connection.aborts:
            await self.settle()
        self.transport.close()
        await asyncio.sleep(0)
        return bytes(self.transport.written)

    async def settle(self) -> None:
        """Wait until every request that is complete is answered."""
        await self.until(lambda: not self.is_busy())
        quiet = 0
        while quiet < TURNS:
            await asyncio.sleep(0)
            quiet += 1
            if self.is_busy():
                await self.until(lambda: not self.is_busy())
                quiet = 0

    def is_busy(self) -> bool:
        cycle = self.protocol.cycle
        if not self.transport.is_open or cycle is None or cycle.response_complete:
            return False
        return bool(self.protocol.pipeline) or not cycle.more_body

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self.transport.changed.clear()
                await self.transport.changed.wait()


Answer = tuple[str, tuple[str, ...], bytes]


def read_answers(written: bytes) -> list[Answer]:
    """The status line, the headers without the date, and the body of each response. A rest is an answer too."""
    answers: list[Answer] = []
    while written:
        head, separator, rest = written.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        if not separator or not status.startswith("HTTP/1.1 "):
            return [*answers, ("no HTTP", (), written)]
        headers = tuple(sorted(line for line in lines if not line.lower().startswith("date:")))
        length = re.search(r"\ncontent-length: *(\d+)", head.decode("latin-1").lower())
        size = int(length[1]) if length and not rest.startswith(b"HTTP/1.1 ") else 0
        if len(rest) < size and rest:
            return [*answers, ("incomplete", headers, written)]
        answers.append((status, headers, rest[:size]))
        written = rest[size:]
    return answers
