"""A TCP proxy between a store and its database that loses, stalls and rejects connections on command.

A fault is tied to a marker in the bytes that the client sends, such as an event id. Each fault happens once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CHUNK = 2**16


class Proxy:
    """Forwards connections to a server until a test orders a fault."""

    def __init__(self, host: str, port: int) -> None:
        self.target = host, port
        self.port = 0
        self.lost = asyncio.Event()
        """Set when a fault that is tied to a marker has happened."""
        self._fault: tuple[bytes, str] | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._vanished = False
        self._delay = 0.0
        self.unanswered = 0
        """How many connections ended while the client waited for a reply: it cannot know what the server did."""

    # -- faults ---------------------------------------------------------------------------------------------------

    def lose_request(self, marker: bytes) -> None:
        """Cut the connection instead of forwarding the bytes with the marker. The server never sees them."""
        self._arm(marker, "request")

    def lose_reply(self, marker: bytes) -> None:
        """Forward the bytes with the marker, and cut the connection when the server replies."""
        self._arm(marker, "reply")

    def lose_answer(self, marker: bytes) -> None:
        """Cut the connection instead of forwarding a reply that contains the marker."""
        self._arm(marker, "answer")

    def leave(self, marker: bytes) -> None:
        """Forward the bytes with the marker and cut the client at once. The server goes on, and its reply is lost."""
        self._arm(marker, "leave")

    def stall(self) -> None:
        """Keep every connection open and forward nothing in either direction until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def vanish(self) -> None:
        """Forward nothing to the server from now on, not even the end of a connection, as after a power cut."""
        self.stall()
        self._vanished = True

    def refuse(self) -> None:
        """Cut every connection and accept none until `accept`."""
        self._refusing = True
        for writer in self._open:
            writer.transport.abort()

    def accept(self) -> None:
        self._refusing = False

    def slow(self, seconds: float) -> None:
        """Forward each reply only after this time."""
        self._delay = seconds

    def _arm(self, marker: bytes, kind: str) -> None:
        self.lost.clear()
        self._fault = marker, kind

    # -- forwarding -----------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        tasks: list[asyncio.Task[None]] = []
        waiting = asyncio.Event()
        try:
            if self._refusing:
                return
            from_server, to_server = await asyncio.open_connection(*self.target)
            ends.append(to_server)
            self._open.update(ends)
            losing = asyncio.Event()
            tasks.append(asyncio.create_task(self._up(reader, to_server, writer, losing, waiting)))
            tasks.append(asyncio.create_task(self._down(from_server, writer, losing, waiting)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The server ended the connection, or a fault dropped its reply.
            self.unanswered += waiting.is_set() and tasks[1].done()
            if self._vanished:
                await asyncio.wait(tasks[1:])  # until the server ends it, or the test
        finally:
            for end in ends:  # before anything is awaited: a second cancellation must not leave a connection open
                end.transport.abort()
            self._open.difference_update(ends)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _up(
        self,
        reader: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        to_client: asyncio.StreamWriter,
        losing: asyncio.Event,
        waiting: asyncio.Event,
    ) -> None:
        seen = b""
        while chunk := await reader.read(CHUNK):
            await self._flowing.wait()
            seen = seen[-1024:] + chunk
            kind = self._meets(seen)
            if kind == "request":
                self.lost.set()
                return
            if kind == "reply":
                losing.set()
            waiting.set()
            to_server.write(chunk)
            await to_server.drain()
            if kind == "leave":
                to_client.transport.abort()
                self.lost.set()
                await asyncio.Event().wait()  # the server's connection stays open, so that it finishes the statement

    async def _down(
        self,
        reader: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        losing: asyncio.Event,
        waiting: asyncio.Event,
    ) -> None:
        while chunk := await reader.read(CHUNK):
            if not self._vanished:
                await self._flowing.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            if losing.is_set() or self._meets(chunk, answer=True):
                self.lost.set()
                return
            waiting.clear()
            to_client.write(chunk)
            await to_client.drain()

    def _meets(self, seen: bytes, *, answer: bool = False) -> str | None:
        if self._fault is None or self._fault[0] not in seen or (self._fault[1] == "answer") != answer:
            return None
        (_, kind), self._fault = self._fault, None
        return kind


@asynccontextmanager
async def proxied(address: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy in front of the server of a database, and the database's address through that proxy."""
    parts = urlsplit(address)
    assert parts.hostname and parts.port
    proxy = Proxy(parts.hostname, parts.port)
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await proxy.serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the database is down, or the test is over
        finally:
            connections.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, address.replace(f":{parts.port}/", f":{proxy.port}/")
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports report their end in the next iterations of the loop
