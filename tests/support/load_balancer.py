"""HAProxy in front of several `oncehook serve` processes, and senders that deliver through it at a rate."""

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import programs
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import parse_head, request
from tests.support.servers import free_port
from tests.support.waiting import let_time_pass, wait_until

SENDERS = 10

CONFIGURATION = """
global
    maxconn 1000
defaults
    mode http
    retries 0
    timeout connect 5s
    timeout check 10s
    timeout client 30s
    timeout server 30s
frontend deliveries
    bind 127.0.0.1:{port}
    default_backend hosts
backend hosts
    balance roundrobin
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host test
    http-check expect status 200
    default-server check inter 50ms fall 1 rise 1
"""
"""A delivery is never sent twice: what fails at a host fails at the sender."""


@contextmanager
def load_balancer(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """The port of HAProxy in front of these ports. It sends only to processes whose /readyz responds 200."""
    port = free_port()
    file = folder / "haproxy.cfg"
    servers = [f"    server host{number} 127.0.0.1:{target}\n" for number, target in enumerate(ports)]
    file.write_text(CONFIGURATION.format(port=port) + "".join(servers))
    process = subprocess.Popen([programs.find("haproxy"), "-db", "-q", "-f", file], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port), "HAProxy listens")
        yield port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class PacedLoad:
    """Senders that deliver new events at a rate over connections that stay open, and record every failure."""

    port: int
    rate: float
    acked: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    """Responses that are not 2xx, and connections that broke."""
    is_over: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._send(number) for number in range(SENDERS)))

    async def _send(self, sender: int) -> None:
        due, number = time.monotonic(), 0
        writer: asyncio.StreamWriter | None = None
        while not self.is_over:
            await let_time_pass(max(0.0, due - time.monotonic()))
            due += SENDERS / self.rate
            number += 1
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                is_open = await self._deliver(f"evt_{sender}_{number}", reader, writer)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failures.append(repr(error))
                is_open = False
            if not is_open and writer is not None:
                writer.transport.abort()
                writer = None
        if writer is not None:
            writer.transport.abort()

    async def _deliver(self, event_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Deliver an event. Returns whether the connection stays open."""
        body = stripe_body(event_id)
        writer.write(request("/webhooks/stripe", stripe_headers(body), body))
        status, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
        answer = await reader.readexactly(int(headers["content-length"]))
        if 200 <= status < 300:
            self.acked.add(event_id)
        else:
            self.failures.append(f"{status} {answer!r}")
        return headers.get("connection") != "close"
