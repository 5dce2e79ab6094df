"""Starts and stops of one inbox that come at the same time: each returns when what it asked for is true."""

import asyncio
from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.events import stripe_body

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def start_and_deliver(inbox: Inbox, event_id: str) -> int:
    await inbox.start()
    return (await deliver(inbox, "stripe", stripe_body(event_id))).status


async def under_way(transition: "asyncio.Task[None]") -> None:
    """Let a start or a stop begin. Both wait for the database."""
    await asyncio.sleep(0)
    assert not transition.done()


async def test_every_start_returns_when_deliveries_are_taken(shop: Inbox) -> None:
    first = asyncio.create_task(shop.start())
    await under_way(first)
    await shop.start()
    assert first.done()
    assert await start_and_deliver(shop, "evt_1") == 202
    await shop.stop()
    await shop.stop()
    assert (await deliver(shop, "stripe", stripe_body("evt_2"))).status == 202
    await shop.stop()
    assert not shop._runtime.is_running


async def test_start_during_a_stop_opens_the_store_again(shop: Inbox) -> None:
    await shop.start()
    stopping = asyncio.create_task(shop.stop())
    await under_way(stopping)
    assert await start_and_deliver(shop, "evt_1") == 202
    assert stopping.done()
    await stopping
    assert (await deliver(shop, "stripe", stripe_body("evt_2"))).status == 202
    await shop.stop()
    assert not shop._runtime.is_running


async def test_start_that_fails_takes_no_other_start_with_it(shop: Inbox) -> None:
    cancelled, other = asyncio.create_task(shop.start()), asyncio.create_task(start_and_deliver(shop, "evt_1"))
    await under_way(cancelled)
    cancelled.cancel()
    assert await other == 202
    assert cancelled.cancelled() and shop._runtime.is_running
    await shop.stop()
    assert not shop._runtime.is_running


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_stop_during_a_start_closes_the_store_after_it(shop: Inbox, is_cancelled: bool) -> None:
    starting = asyncio.create_task(shop.start())
    await under_way(starting)
    stopping = asyncio.create_task(shop.stop())
    await under_way(stopping)
    if is_cancelled:
        stopping.cancel()
    await starting
    await asyncio.gather(stopping, return_exceptions=True)
    assert stopping.cancelled() == is_cancelled and not shop._runtime.is_running
    async with shop.lifespan():
        assert (await deliver(shop, "stripe", stripe_body("evt_1"))).status == 202


async def test_every_stop_returns_when_the_store_is_closed(shop: Inbox) -> None:
    await shop.start()
    stopping = asyncio.create_task(shop.stop())
    await under_way(stopping)
    await shop.stop()
    assert stopping.done()


def test_starts_meet_in_one_loop_after_another(shop: Inbox) -> None:
    async def start_twice(run: int) -> list[int]:
        taken = await asyncio.gather(*(start_and_deliver(shop, f"evt_{run}_{n}") for n in range(2)))
        await asyncio.gather(shop.stop(), shop.stop())
        return taken

    assert [asyncio.run(start_twice(run)) for run in range(2)] == [[202, 202], [202, 202]]
