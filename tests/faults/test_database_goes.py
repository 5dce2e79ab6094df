"""The database loses its connections, restarts or dies under load: no event that was acked is lost or taken twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.events import STRIPE_SECRET, stripe_body
from tests.support.servers import Postgres, ask, private_postgres

pytestmark = pytest.mark.anyio

SENDERS = 12


class Load:
    """Senders that deliver events of their own until told to stop, each again and again until it is acked."""

    def __init__(self, inbox: Inbox, seed: int) -> None:
        self.inbox = inbox
        self.seed = seed
        self.acked: dict[str, bytes] = {}
        self.fresh: list[str] = []
        self.refused = 0
        self.stopping = False
        self._acks = asyncio.Condition()

    async def send(self, sender: int) -> None:
        chance = random.Random(f"{self.seed}/{sender}")
        number = 0
        while not self.stopping:
            number += 1
            event_id = f"evt_{sender}_{number}"
            body = stripe_body(event_id, filler="x" * chance.randrange(2000))
            while (status := await self._deliver(event_id, body)) == 503:
                self.refused += 1
            assert status in (200, 202), status
            if chance.random() < 0.2:
                assert await self._deliver(event_id, body) in (200, 503)

    async def _deliver(self, event_id: str, body: bytes) -> int:
        answer = await deliver(self.inbox, "stripe", body)
        if answer.status in (200, 202):
            self.fresh += [event_id] * (answer.status == 202)
            async with self._acks:
                self.acked[event_id] = body
                self._acks.notify_all()
        return answer.status

    async def until_more(self, count: int) -> None:
        """Until so many more events are acked."""
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


def check(address: str, load: Load) -> None:
    said = f"seed {load.seed}"
    rows = ask(address, "SELECT event_id, body FROM webhook_receipts r LEFT JOIN webhook_payloads ON receipt_id = r.id")
    assert len(rows) == len(dict(rows)), f"an event has two rows: {said}"
    stored = dict(rows)
    lost = [event_id for event_id, body in load.acked.items() if stored.get(event_id) != body]
    assert not lost, f"acked and lost: {lost[:5]}: {said}"
    assert len(load.fresh) == len(set(load.fresh)), f"an event was accepted twice: {said}"


async def run(
    address: str, rounds: int, fault: Callable[[], Awaitable[object]], *, most_refused: float | None = None
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    async with under_load(address, seed) as load:
        for _ in range(rounds):
            await load.until_more(chance.randrange(20, 150))
            await fault()
        await load.until_more(100)
    check(address, load)
    assert load.acked
    if most_refused is not None:
        assert load.refused <= most_refused, f"{load.refused} were refused: seed {seed}"


async def test_connections_that_are_terminated_under_load_cost_no_event_and_no_503(postgres: Postgres) -> None:
    address = postgres.database(migrated=True)
    terminate = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'oncehook'"
    )
    await run(address, 25, lambda: asyncio.to_thread(ask, address, terminate), most_refused=0)


async def restart(server: Postgres, *, kill: bool) -> None:
    await asyncio.to_thread(server.stop, kill=kill)
    await asyncio.to_thread(server.start)


async def test_a_database_that_restarts_and_dies_under_load_loses_no_acked_event() -> None:
    with private_postgres() as server:
        address = server.database()
        kills = iter([False, True, True])
        await run(address, 3, lambda: restart(server, kill=next(kills)))


@pytest.mark.torture
async def test_a_database_that_dies_fifty_times_under_load_loses_no_acked_event() -> None:
    with private_postgres() as server:
        address = server.database()
        await run(address, 50, lambda: restart(server, kill=True))
