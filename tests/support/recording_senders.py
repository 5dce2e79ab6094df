"""Senders over real connections that record every response, for runs that kill the service."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field

from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import parse_head, request
from tests.support.servers import run_sql

RESPONSE_SECONDS = 30.0
"""Seconds after which a live server that does not respond fails the run."""


STORED = """
SELECT event_id, body FROM webhook_receipts r LEFT JOIN webhook_payloads ON receipt_id = r.id WHERE consumer = 'main'
"""


@dataclass
class Ledger:
    """What the senders know: every body that was sent, and every complete response."""

    seed: int
    bodies: dict[str, bytes] = field(default_factory=dict)
    accepted: list[str] = field(default_factory=list)
    acked: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    """Events without a response. They are sent again, as a provider does."""
    odd: list[str] = field(default_factory=list)
    """Responses that must never occur."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.recent: deque[str] = deque(maxlen=50)
        self.more = asyncio.Condition()

    def next_event(self) -> str:
        """Mostly a new event; sometimes an acked one again, or one without a response."""
        dice = self.chance.random()
        if self.unknown and dice < 0.3:
            return self.unknown.pop()
        if self.bodies and dice < 0.5:
            return self.chance.choice(self.recent)
        event_id = f"evt_{len(self.bodies)}"
        self.bodies[event_id] = stripe_body(event_id, filler="x" * self.chance.randrange(1500))
        self.recent.append(event_id)
        return event_id

    async def record(self, event_id: str, status: int, body: bytes) -> None:
        if status == 202:
            self.accepted.append(event_id)
        elif status != 200 or b'"duplicate"' not in body:
            self.odd.append(f"{event_id}: {status} {body!r}")
            return
        async with self.more:
            self.acked.add(event_id)
            self.more.notify_all()

    async def until_more(self, count: int) -> None:
        goal = len(self.acked) + count
        async with self.more:
            await asyncio.wait_for(
                self.more.wait_for(lambda: len(self.acked) >= goal or bool(self.odd)), RESPONSE_SECONDS
            )


async def send(ledger: Ledger, port: int) -> None:
    """Deliver over one connection until it breaks."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    try:
        while True:
            event_id = ledger.next_event()
            body = ledger.bodies[event_id]
            try:
                writer.write(request("/webhooks/stripe", stripe_headers(body), body))
                status, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
                answer = await reader.readexactly(int(headers["content-length"]))
            except (OSError, asyncio.IncompleteReadError):
                ledger.unknown.append(event_id)
                return
            await ledger.record(event_id, status, answer)
    finally:
        writer.transport.abort()


def assert_every_ack_is_recorded(database: str, ledger: Ledger) -> None:
    seed = f"repeat with Ledger({ledger.seed})"
    rows = run_sql(database, STORED)
    stored = dict(rows)
    assert not ledger.odd, f"{ledger.odd[:3]}: {seed}"
    assert len(rows) == len(stored), f"an event has two rows: {seed}"
    lost = sorted(event_id for event_id in ledger.acked if stored.get(event_id) != ledger.bodies[event_id])
    assert not lost, f"{len(lost)} acked and lost, such as {lost[:3]}: {seed}"
    assert len(ledger.accepted) == len(set(ledger.accepted)), f"an event was accepted twice: {seed}"
    assert set(stored) <= set(ledger.bodies), f"an event that was never sent: {seed}"
