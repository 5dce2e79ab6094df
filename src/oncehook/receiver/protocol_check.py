"""Chooses the HTTP protocol of `oncehook serve`: the fastest that works with the installed uvicorn.

The protocols depend on attributes of uvicorn's protocol that may change in any version. So before the server listens,
each protocol answers a few requests in memory. A protocol with a wrong response is not used, and a log line reports
it. The last choice is uvicorn's unmodified h11 protocol, which has its own limit for request heads.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from oncehook.model.delivery import Delivery
from oncehook.observability import signals
from oncehook.receiver.ack import Response, rejected_response
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.limited_protocol import LimitedProtocol
from oncehook.receiver.request import MAX_HEAD_BYTES, PREFIX, Receive, Scope, Send, respond

PLAIN = "h11"
SECONDS = 5.0

ACCEPTED: Response = (202, b"direct", ())
THROUGH_ASGI: Response = (202, b"asgi", ())


async def choose_protocol(*, fast: bool) -> type[asyncio.Protocol] | str:
    """Return the protocol class, or uvicorn's name of its h11 protocol."""
    for protocol in (FastProtocol, LimitedProtocol) if fast else (LimitedProtocol,):
        try:
            async with asyncio.timeout(SECONDS):
                await check(protocol, direct=protocol is FastProtocol)
        except Exception as error:
            detail = f"{protocol.__name__} does not work with uvicorn {uvicorn.__version__}: {error!r}"
            signals.emit("fast_path_off", path="protocol", detail=detail)
        else:
            return protocol
    return PLAIN


async def check(protocol: Callable[..., asyncio.Protocol], *, direct: bool) -> None:
    """Raise an exception if the protocol gives a wrong response."""
    body = b"{}"
    head = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n" % f"{PREFIX}probe".encode()
    whole = await _responses(protocol, head + b"\r\n" + body)
    _expect(whole, b"HTTP/1.1 202 ", b"direct" if direct else b"asgi")
    _expect(await _responses(protocol, head + b"\r\n", body), b"HTTP/1.1 202 ", b"asgi")
    too_large = head + b"x: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n" + body
    _expect(await _responses(protocol, too_large), b"HTTP/1.1 431 ", b"head_too_large")


def _expect(response: bytes, status: bytes, text: bytes) -> None:
    if not (response.startswith(status) and text in response):
        raise RuntimeError(f"expected {status.decode()}with {text.decode()}, got {response[:80]!r}")


async def _responses(protocol: Callable[..., asyncio.Protocol], *pieces: bytes) -> bytes:
    """Return the bytes that a connection writes when one request arrives in these pieces."""
    config = uvicorn.Config(
        ProbeApp(),
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
        log_level="critical",
        proxy_headers=False,
    )
    config.load()
    connection = protocol(config=config, server_state=ServerState(), app_state={})
    transport = MemoryTransport()
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    await transport.answered.wait()
    connection.connection_lost(None)
    return transport.written


class MemoryTransport(asyncio.Transport):
    """A transport in memory. It stores the bytes that the protocol writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.answered = asyncio.Event()
        self.closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        if any(text in self.written for text in (b"direct", b"asgi", b"error")):
            self.answered.set()

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        self.answered.set()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class ProbeApp:
    """Replaces the service during the check: it answers without sources, a database or log lines."""

    def __init__(self) -> None:
        source = SimpleNamespace(is_plain=True)
        errors = SimpleNamespace(respond=lambda name, error: error.response)
        self.receiver = SimpleNamespace(sources={"probe": source}, errors=errors, receive=self._receive)

    async def _receive(self, name: str, delivery: Delivery) -> Response:
        commit = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(commit.set_result, None)
        await commit
        return ACCEPTED if delivery.body == b"{}" else rejected_response("malformed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        complete = message.get("body") == b"{}"
        await respond(send, THROUGH_ASGI if complete else rejected_response("malformed"))
