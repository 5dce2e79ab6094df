"""A closed-loop load generator: each of N connections sends its next request when it has the last response.

Requests are prepared before the measurement, so that the generator costs little, and the same for every target.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class LoadResult:
    """The responses and latencies of one run."""

    seconds: float = 0.0
    responses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Connection(asyncio.Protocol):
    """A keep-alive connection."""

    def __init__(
        self, requests: Iterator[bytes], result: LoadResult, done: asyncio.Event, open_count: list[int]
    ) -> None:
        self.requests = requests
        self.result = result
        self.done = done
        self.open_count = open_count
        self.buffer = b""
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.open_count[0] += 1
        self._send_next()

    def _send_next(self) -> None:
        request = next(self.requests, None)
        if request is None or self.done.is_set():
            self.transport.close()
            return
        self.sent = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        match = _LENGTH.search(self.buffer, 0, end)
        length = int(match[1]) if match else 0
        if len(self.buffer) < end + 4 + length:
            return
        self.result.responses[int(self.buffer[9:12])] += 1
        self.result.latencies.append(time.perf_counter() - self.sent)
        self.buffer = b""
        self._send_next()

    def connection_lost(self, error: Exception | None) -> None:
        self.open_count[0] -= 1
        if self.open_count[0] == 0:
            self.done.set()


async def drive(port: int, requests: Iterator[bytes], *, connections: int, seconds: float) -> LoadResult:
    """Send requests until the time is up or all are sent."""
    loop = asyncio.get_running_loop()
    result, done, open_count = LoadResult(), asyncio.Event(), [0]
    started = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(requests, result, done, open_count), "127.0.0.1", port)
    try:
        await asyncio.wait_for(done.wait(), seconds)
    except TimeoutError:
        done.set()
    result.seconds = time.perf_counter() - started
    return result
