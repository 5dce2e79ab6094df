"""The inbox as a real server, in this event loop or as an `oncehook serve` process, and raw HTTP requests to it."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from oncehook import Inbox
from oncehook.cli.serve import listen, make_server
from oncehook.testing import DeliveryResponse
from tests.support.events import STRIPE_SECRET, stripe_headers
from tests.support.waiting import wait_until

ONCEHOOK = Path(sys.executable).parent / "oncehook"


# -- in this loop ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(inbox: Inbox, dashboard: Any = None) -> AsyncIterator[int]:
    """The port of a real server with the inbox behind it."""
    listener = listen("127.0.0.1", 0)
    server = make_server(inbox, dashboard)
    stop = asyncio.Event()

    async def wait_for_stop() -> None:
        """uvicorn's own loop looks ten times a second whether it should exit."""
        await server.on_tick(0)
        await stop.wait()

    server.main_loop = wait_for_stop  # type: ignore[method-assign]
    async with inbox.lifespan():
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            stop.set()
            await serving


class Wire:
    """One connection, over which a test sends exact bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self, seconds: float = 30.0) -> DeliveryResponse:
        async with asyncio.timeout(seconds):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers = parse_head(head)
            return DeliveryResponse(
                status, headers, await self.reader.readexactly(int(headers.get("content-length", "0")))
            )

    async def is_closed(self, seconds: float = 30.0) -> bool:
        """Whether the server closes the connection without sending more."""
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def assert_read(port: int) -> None:
    """Return when the server has read everything that was sent on other connections before this call."""
    async with connected(port) as wire:
        await wire.say(request("/healthz", {}, None, method="GET"))
        assert (await wire.answer()).status == 200


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers


def request(path: str, headers: Mapping[str, str], body: bytes | None, *, method: str = "POST") -> bytes:
    """The bytes of a request. With a body, it has a Content-Length."""
    fields = {"Host": "test", **headers}
    if body is not None:
        fields.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


# -- as a process ---------------------------------------------------------------------------------------------------


def write_config(folder: Path, database: str, *lines: str) -> Path:
    """A configuration with a Stripe source on this database."""
    file = folder / "oncehook.toml"
    stripe = ["[sources.stripe]", f'secrets = ["{STRIPE_SECRET}"]']
    poll = [] if any(line.startswith("poll") for line in lines) else ['poll = "50ms"']
    file.write_text("\n".join([f'database = "{database}"', *poll, *lines, *stripe]) + "\n")
    return file


class Process:
    """A running `oncehook serve`, with the address that it printed."""

    def __init__(
        self,
        config: Path,
        *options: str,
        log: Any = subprocess.DEVNULL,
        app: str | None = None,
        cwd: Path | None = None,
        **environment: str,
    ) -> None:
        command = [str(ONCEHOOK), "serve", *([app] if app else []), "--config", str(config), "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=cwd, env={**os.environ, **environment}
        )
        assert self.process.stdout is not None
        self.announcement = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.announcement)
        if found is None:
            raise AssertionError(f"oncehook serve did not start: {self.announcement!r}, exit code {self.end()}")
        self.port = int(found[1])

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal, and return its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(40)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


@contextmanager
def process(config: Path, *options: str, **more: Any) -> Iterator[Process]:
    running = Process(config, *options, **more)
    try:
        yield running
    finally:
        running.kill()


@contextmanager
def worker_process(folder: Path, *options: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A running `oncehook worker hooks:inbox` with the configuration in this folder."""
    command = [str(ONCEHOOK), "worker", "hooks:inbox", "--config", "oncehook.toml", *options]
    running = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    assert running.stdout is not None
    try:
        assert "Oncehook worker" in running.stdout.readline(), "the worker did not start"
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def post_stripe(port: int, body: bytes) -> httpx.Response:
    """Deliver a signed Stripe event to a service on this port."""
    url = f"http://127.0.0.1:{port}/webhooks/stripe"
    return httpx.post(url, content=body, headers=stripe_headers(body), timeout=10, verify=False)


def wait_until_refused(port: int) -> None:
    """Wait until no process listens on this port any more."""

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(is_refused, "the process stops listening", within=10)
