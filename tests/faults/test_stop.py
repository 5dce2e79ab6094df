"""Stopping has one deadline for all parts of the inbox, also when the database does not answer."""

import asyncio
import time
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.runtime import STOP_MARGIN
from tests.support.events import STRIPE_SECRET, make_claim
from tests.support.proxy import proxied
from tests.support.servers import Postgres
from tests.support.waiting import hang

pytestmark = pytest.mark.anyio

SOME_SECONDS = 6.0
"""Seconds after the deadline in which connections are closed, each within two seconds."""


async def test_stopping_ends_in_time_when_the_database_does_not_answer(postgres: Postgres) -> None:
    """Handlers hold transactions, others wait for one, and the relay and the alerts query the database."""
    async with proxied(postgres.database(migrated=True)) as (proxy, through):
        inbox = Inbox(through, stop_grace="500ms", lease="10s", poll="50ms")
        inbox.source("stripe", secrets=[STRIPE_SECRET])
        inside = asyncio.Semaphore(0)

        @inbox.on("stripe", "*")
        async def write(event: Event, tx: Any) -> None:
            await tx.execute("SELECT 1")
            inside.release()
            await hang()

        await inbox.start()
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}") for n in range(20)])
        async with asyncio.timeout(30):
            for _ in range(8):
                await inside.acquire()
        proxy.stall()
        began = time.monotonic()
        await asyncio.wait_for(inbox.stop(), 60)
        took = time.monotonic() - began
        proxy.flow()
    assert took < 0.5 + STOP_MARGIN + SOME_SECONDS, f"stopping took {took:.1f} s"
