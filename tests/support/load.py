"""Senders that keep an inbox under load, and a check that every acked event is recorded."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.events import STRIPE_SECRET, stripe_body
from tests.support.servers import run_sql

SENDERS = 12


class Load:
    """Senders that deliver new events until `stopping` is set. Each event is delivered until it is acked."""

    def __init__(self, inbox: Inbox, seed: int) -> None:
        self.inbox = inbox
        self.seed = seed
        self.acked: dict[str, bytes] = {}
        self.fresh: list[str] = []
        self.unavailable = 0
        self.stopping = False
        self.may_vanish = False  # a restore removes receipts, so that their duplicates are accepted
        self._acks = asyncio.Condition()

    async def send(self, sender: int) -> None:
        chance = random.Random(f"{self.seed}/{sender}")
        number = 0
        while not self.stopping:
            number += 1
            event_id = f"evt_{sender}_{number}"
            body = stripe_body(event_id, filler="x" * chance.randrange(2000))
            while (status := await self._deliver(event_id, body)) == 503:
                self.unavailable += 1
            assert status in (200, 202), status
            if chance.random() < 0.2:
                assert await self._deliver(event_id, body) in (200, 503) or self.may_vanish

    async def _deliver(self, event_id: str, body: bytes) -> int:
        answer = await deliver(self.inbox, "stripe", body)
        if answer.status in (200, 202):
            self.fresh += [event_id] * (answer.status == 202)
            async with self._acks:
                self.acked[event_id] = body
                self._acks.notify_all()
        return answer.status

    async def until_more(self, count: int) -> None:
        """Wait until `count` more events are acked."""
        goal = len(self.acked) + count
        async with self._acks:
            await asyncio.wait_for(self._acks.wait_for(lambda: len(self.acked) >= goal), 30)


@asynccontextmanager
async def under_load(address: str, seed: int) -> AsyncIterator[Load]:
    inbox = Inbox(address, claim_timeout="5s")
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    async with inbox.lifespan():
        load = Load(inbox, seed)
        sending = [asyncio.create_task(load.send(number)) for number in range(SENDERS)]
        try:
            yield load
        finally:
            load.stopping = True
            await asyncio.gather(*sending)


def assert_every_ack_is_recorded(address: str, load: Load) -> None:
    """Each acked event has one receipt with its body, and none was accepted twice."""
    seed = f"seed {load.seed}"
    rows = run_sql(
        address, "SELECT event_id, body FROM webhook_receipts r LEFT JOIN webhook_payloads ON receipt_id = r.id"
    )
    assert len(rows) == len(dict(rows)), f"an event has two rows: {seed}"
    stored = dict(rows)
    lost = [event_id for event_id, body in load.acked.items() if stored.get(event_id) != body]
    assert not lost, f"acked and lost: {lost[:5]}: {seed}"
    assert len(load.fresh) == len(set(load.fresh)), f"an event was accepted twice: {seed}"
