"""A closed-loop load generator: N connections, each sends its next request when the last one is answered.

Requests are prepared before the clock starts, so that the generator costs little and the same for every target.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Result:
    """What one run saw."""

    seconds: float = 0.0
    answers: Counter[int] = field(default_factory=Counter)
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
    """One keep-alive connection."""

    def __init__(self, requests: Iterator[bytes], result: Result, done: asyncio.Event, counter: list[int]) -> None:
        self.requests = requests
        self.result = result
        self.done = done
        self.counter = counter
        self.buffer = b""
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.counter[0] += 1
        self._next()

    def _next(self) -> None:
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
        self.result.answers[int(self.buffer[9:12])] += 1
        self.result.latencies.append(time.perf_counter() - self.sent)
        self.buffer = b""
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self.counter[0] -= 1
        if self.counter[0] == 0:
            self.done.set()


async def drive(port: int, requests: Iterator[bytes], *, connections: int, seconds: float) -> Result:
    """Send until the time is up or the requests are used up."""
    loop = asyncio.get_running_loop()
    result, done, counter = Result(), asyncio.Event(), [0]
    started = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(requests, result, done, counter), "127.0.0.1", port)
    try:
        await asyncio.wait_for(done.wait(), seconds)
    except TimeoutError:
        done.set()
    result.seconds = time.perf_counter() - started
    return result
