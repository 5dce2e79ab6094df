"""Senders over connections that stay open. They repeat each delivery until it has a 2xx, and count every answer."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from proof.deliveries.plan import Plan, event_id
from proof.deliveries.world import World
from tests.support.events import stripe_headers
from tests.support.serve import parse_head, request

SENDERS = 48
RESPONSE_SECONDS = 8.0
PAUSE_SECONDS = 0.3
SLOW_SECONDS = 0.1
LEAVES = 0.004
"""The share of deliveries whose client disconnects, in the body or before the response."""

EXPECTED = (503,)
"""Responses besides 2xx that a sender may get. On SQLite, a clock that jumps after the signature adds 401."""


@dataclass
class Answers:
    """What the senders know at the end."""

    acked: set[int] = field(default_factory=set)
    acks: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    ambiguous: int = 0
    """Requests that were sent and had no response."""
    unreachable: int = 0
    left: int = 0
    odd: list[str] = field(default_factory=list)


class Traffic:
    """Sends the deliveries of a plan to the servers, at a rate."""

    def __init__(self, plan: Plan, world: World, rate: float, *, leaves: bool) -> None:
        self.plan, self.world, self.rate, self.leaves = plan, world, rate, leaves
        self.expected = EXPECTED if world.is_postgres else (*EXPECTED, 401)
        self.answers = Answers()
        self.done = 0
        self.is_over = False
        self.needed: Callable[[], bool] = lambda: False
        """Whether a fault still needs traffic. Then the last fifth of the deliveries is sent slowly."""
        self._next = iter(enumerate(plan.deliveries))
        self._began = 0.0
        self._slowly = asyncio.Lock()

    async def run(self) -> None:
        self._began = time.monotonic()
        await asyncio.gather(*(Sender(self, number).run() for number in range(SENDERS)))
        self.is_over = True

    async def next_event(self) -> int | None:
        index, number = next(self._next, (0, None))
        if number is not None:
            await asyncio.sleep(max(0.0, self._began + index / self.rate - time.monotonic()))
        if index > 0.8 * len(self.plan.deliveries):
            async with self._slowly:
                await asyncio.sleep(SLOW_SECONDS if self.needed() else 0.0)
        return number


class Sender:
    """One client with one connection at a time."""

    def __init__(self, traffic: Traffic, number: int) -> None:
        self.traffic = traffic
        self.answers = traffic.answers
        self.chance = random.Random(f"{traffic.plan.seed}/sender/{number}")
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        try:
            while (number := await self.traffic.next_event()) is not None:
                await self._deliver(number)
                self.traffic.done += 1
        finally:
            self._leave()

    async def _deliver(self, number: int) -> None:
        body = self.traffic.plan.body(number)
        pause = PAUSE_SECONDS / 10
        while True:
            status = await self._try_once(body)
            if status in (200, 202):
                self.answers.acks += 1
                self.answers.acked.add(number)
                self.answers.accepted[number] += status == 202
                return
            if status is not None:
                self.answers.refused[status] += 1
                if status not in self.traffic.expected:
                    self.answers.odd.append(f"{event_id(number)}: {status}")
                    return
            await asyncio.sleep(pause * self.chance.uniform(0.5, 1.5))
            pause = min(2 * pause, PAUSE_SECONDS)

    async def _try_once(self, body: bytes) -> int | None:
        """The status of the response, or None without one."""
        try:
            reader, writer = self.streams or await self._connect()
        except OSError:
            self.answers.unreachable += 1
            return None
        headers = stripe_headers(body, now=time.time() + self.traffic.world.clock_offset)
        message = request("/webhooks/stripe", headers, body)
        try:
            if self.traffic.leaves and self.chance.random() < LEAVES:
                writer.write(message[: self.chance.choice((len(message) - 10, len(message)))])
                await asyncio.sleep(self.chance.choice((0, 0.001, 0.005)))
                self.answers.left += 1
                self._leave()
                return None
            writer.write(message)
            async with asyncio.timeout(RESPONSE_SECONDS):
                status, fields = parse_head(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(int(fields["content-length"]))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self.answers.ambiguous += 1
            self._leave()
            return None
        if fields.get("connection") == "close":
            self._leave()
        return status

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ports = [slot.port for slot in self.traffic.world.servers if slot.port is not None]
        if not ports:
            raise ConnectionRefusedError("no server listens")
        async with asyncio.timeout(RESPONSE_SECONDS):
            self.streams = await asyncio.open_connection("127.0.0.1", self.chance.choice(ports))
        return self.streams

    def _leave(self) -> None:
        if self.streams is not None:
            self.streams[1].transport.abort()
            self.streams = None
