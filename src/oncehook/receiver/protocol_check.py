"""Which HTTP protocol `oncehook serve` uses: the fastest that works with the uvicorn that is installed.

The protocols lean on attributes of uvicorn's own, which no version promises. So before anything listens, each is given
a few requests in memory. One whose answers are not right is not used, and a log line says so. The last choice is
uvicorn's h11 protocol, untouched, with its own limit for request heads.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from oncehook.model.delivery import Delivery
from oncehook.observability import signals
from oncehook.receiver.ack import Response, refused
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.limited_protocol import LimitedProtocol
from oncehook.receiver.request import MOST_HEAD, PREFIX, Receive, Scope, Send, respond

PLAIN = "h11"
SECONDS = 5.0

ACCEPTED: Response = (202, b"direct", ())
THROUGH_ASGI: Response = (202, b"asgi", ())


async def choose_protocol(*, fast: bool) -> type[asyncio.Protocol] | str:
    """The protocol class, or uvicorn's name of its plain one."""
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
    """Raise an exception unless the protocol answers requests as it should."""
    body = b"{}"
    head = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n" % f"{PREFIX}probe".encode()
    whole = await _answers(protocol, head + b"\r\n" + body)
    _expect(whole, b"HTTP/1.1 202 ", b"direct" if direct else b"asgi")
    _expect(await _answers(protocol, head + b"\r\n", body), b"HTTP/1.1 202 ", b"asgi")
    too_large = head + b"x: " + b"x" * MOST_HEAD + b"\r\n\r\n" + body
    _expect(await _answers(protocol, too_large), b"HTTP/1.1 431 ", b"head_too_large")


def _expect(answer: bytes, status: bytes, word: bytes) -> None:
    if not (answer.startswith(status) and word in answer):
        raise RuntimeError(f"expected {status.decode()}with {word.decode()}, found {answer[:80]!r}")


async def _answers(protocol: Callable[..., asyncio.Protocol], *pieces: bytes) -> bytes:
    """What a connection answers to one request that arrives in these pieces."""
    config = uvicorn.Config(
        Probe(),
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
    transport = Wire()
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    await transport.answered.wait()
    connection.connection_lost(None)
    return transport.written


class Wire(asyncio.Transport):
    """A connection in memory: it keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.answered = asyncio.Event()
        self.closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        if any(word in self.written for word in (b"direct", b"asgi", b"error")):
            self.answered.set()

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        self.answered.set()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Probe:
    """Stands for the service: it answers without a source, a database or a log line."""

    def __init__(self) -> None:
        source = SimpleNamespace(is_plain=True)
        refusals = SimpleNamespace(answer=lambda name, error: error.response)
        self.receiver = SimpleNamespace(sources={"probe": source}, refusals=refusals, receive=self._receive)

    async def _receive(self, name: str, delivery: Delivery) -> Response:
        commit = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(commit.set_result, None)
        await commit
        return ACCEPTED if delivery.body == b"{}" else refused("malformed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        complete = message.get("body") == b"{}"
        await respond(send, THROUGH_ASGI if complete else refused("malformed"))
