"""Senders at a constant rate, whose latency counts from the moment each event was due, and hostile clients."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from proof.deliveries.plan import Plan
from tests.support.events import stripe_headers
from tests.support.serve import parse_head, request

CONNECTIONS = 100
RESPONSE_SECONDS = 30.0


@dataclass
class Load:
    """Events that are due at a constant rate. A late sender does not slow down the others or hide its delay."""

    port: int
    rate: float
    seconds: float
    plan: Plan = field(default_factory=lambda: Plan(0, (0,)))
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """When each event was due, in seconds since the start, and how long its response took since then."""
    failures: list[str] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    began: float = 0.0

    async def run(self) -> None:
        self.began = time.monotonic()
        numbers = count()
        await asyncio.gather(*(self._send(numbers) for _ in range(CONNECTIONS)))

    async def _send(self, numbers: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for number in numbers:
                due = number / self.rate
                if due >= self.seconds:
                    return
                await asyncio.sleep(max(0.0, self.began + due - time.monotonic()))
                body = self.plan.body(number)
                writer.write(request("/webhooks/stripe", stripe_headers(body), body))
                async with asyncio.timeout(RESPONSE_SECONDS):
                    status, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
                    await reader.readexactly(int(headers["content-length"]))
                self.latencies.append((due, time.monotonic() - self.began - due))
                self.acked.add(number)
                if status != 202:
                    self.failures.append(f"event {number} got {status}")
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            writer.transport.abort()


class Hostile:
    """Clients that send heads and bodies byte by byte, and bodies that are too large, until they are cancelled."""

    SLOW, OVERSIZED = 40, 4
    PAUSE = 0.5
    BODY = 5 * 2**20

    def __init__(self, port: int) -> None:
        self.port = port
        self.outcomes: Counter[str] = Counter()
        """How often which kind of client got which response."""

    async def run(self) -> None:
        clients = [self._slow("slow head", b"") for _ in range(self.SLOW)]
        head = request("/webhooks/stripe", {"Content-Length": "2000"}, None)
        clients += [self._slow("slow body", head) for _ in range(self.SLOW)]
        clients += [self._oversized(is_chunked) for is_chunked in (True, False) for _ in range(self.OVERSIZED // 2)]
        await asyncio.gather(*clients)

    async def _slow(self, kind: str, first: bytes) -> None:
        rest = request("/webhooks/stripe", {}, None)[:-4] + b"\r\nX-Slow: " + b"x" * 1000
        await asyncio.sleep(random.uniform(0, self.PAUSE))
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(first)
                answer = asyncio.create_task(reader.read(65536))
                for byte in b"x" * 2000 if first else rest:
                    writer.write(bytes([byte]))
                    await asyncio.wait([answer], timeout=self.PAUSE)
                    if answer.done():
                        break
                self.outcomes[f"{kind}, {_status(await answer)}"] += 1
            except OSError:
                self.outcomes[f"{kind}, connection reset"] += 1
            finally:
                writer.transport.abort()

    async def _oversized(self, is_chunked: bool) -> None:
        fields = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(self.BODY)}
        head = request("/webhooks/stripe", fields, None)
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(head)
                for _ in range(self.BODY // 65536):
                    writer.write(
                        (b"10000\r\n" if is_chunked else b"") + b"x" * 65536 + (b"\r\n" if is_chunked else b"")
                    )
                    await writer.drain()
                self.outcomes[f"oversized body, {_status(await reader.read(65536))}"] += 1
            except OSError:
                self.outcomes["oversized body, connection reset"] += 1
            finally:
                writer.transport.abort()
            await asyncio.sleep(self.PAUSE)


def _status(answer: bytes) -> str:
    return answer[9:12].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"
