"""An HTTP target in this event loop: a real server that records requests and misbehaves on command."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.serve import parse_head

Behavior = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]
Answering = bytes | Behavior


@dataclass
class Request:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes
    head: bytes


@dataclass
class Receiver:
    """What the target has received. It uses its `answers` in order, and repeats the last one."""

    answers: list[Answering]
    port: int = 0
    connections: int = 0
    requests: list[Request] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?token=hidden-in-the-query"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client gave up, as many of these tests expect
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.decode("latin-1").partition("\r\n")
        _, headers = parse_head(b"HTTP/1.1 200 OK\r\n" + rest.encode("latin-1"))
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(line, headers, body, head)
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(request, writer)
        finally:
            self.under_way -= 1
        return not writer.transport.is_closing()


@asynccontextmanager
async def receiving(
    *answers: Answering, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers) or [http_response(200)])
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await receiver.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- how a target may behave ----------------------------------------------------------------------------------------


def http_response(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def close_after(start: bytes = b"") -> Behavior:
    """Sends these bytes and closes."""

    async def close(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        await writer.drain()
        writer.close()

    return close


def stall_after(start: bytes = b"") -> Behavior:
    """Sends these bytes, and then nothing while the client waits."""

    async def stall(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        await asyncio.sleep(60)

    return stall


def drip_after(start: bytes) -> Behavior:
    """Sends one byte at a time, each well within the timeout of a socket."""

    async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while not writer.transport.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    return drip


async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(b"x" * 65536)
        await writer.drain()


def wait_for(event: asyncio.Event, answer: bytes) -> Behavior:
    """Sends the answer when the test sets the event."""

    async def wait(request: Request, writer: asyncio.StreamWriter) -> None:
        await event.wait()
        writer.write(answer)

    return wait
