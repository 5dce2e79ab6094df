"""Concurrent starts and stops of one inbox: each call returns when the inbox is in the requested state."""

import asyncio
from collections.abc import Callable

import pytest

from oncehook import Event, Inbox
from oncehook.model.errors import Unavailable
from oncehook.testing import deliver
from tests.support.events import stripe_body
from tests.support.waiting import eventually, next_turn, stays_true
from tests.support.work import claim

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def start_and_deliver(inbox: Inbox, event_id: str) -> int:
    await inbox.start()
    return (await deliver(inbox, "stripe", stripe_body(event_id))).status


async def assert_under_way(transition: "asyncio.Task[None]") -> None:
    """Let a start or a stop begin, and check that it waits for the database."""
    await next_turn()
    assert not transition.done()


async def test_every_start_returns_when_the_inbox_accepts_deliveries(shop: Inbox) -> None:
    first = asyncio.create_task(shop.start())
    await assert_under_way(first)
    await shop.start()
    assert first.done()
    assert await start_and_deliver(shop, "evt_1") == 202
    await shop.stop()
    await shop.stop()
    assert (await deliver(shop, "stripe", stripe_body("evt_2"))).status == 202
    await shop.stop()
    assert not shop._runtime.is_running


async def test_a_start_during_a_stop_opens_the_store_again(shop: Inbox) -> None:
    await shop.start()
    stopping = asyncio.create_task(shop.stop())
    await assert_under_way(stopping)
    assert await start_and_deliver(shop, "evt_1") == 202
    assert stopping.done()
    await stopping
    assert (await deliver(shop, "stripe", stripe_body("evt_2"))).status == 202
    await shop.stop()
    assert not shop._runtime.is_running


async def test_a_start_that_fails_does_not_fail_another_start(shop: Inbox) -> None:
    cancelled, other = asyncio.create_task(shop.start()), asyncio.create_task(start_and_deliver(shop, "evt_1"))
    await assert_under_way(cancelled)
    cancelled.cancel()
    assert await other == 202
    assert cancelled.cancelled() and shop._runtime.is_running
    await shop.stop()
    assert not shop._runtime.is_running


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_stop_during_a_start_closes_the_store_after_it(shop: Inbox, is_cancelled: bool) -> None:
    starting = asyncio.create_task(shop.start())
    await assert_under_way(starting)
    stopping = asyncio.create_task(shop.stop())
    await assert_under_way(stopping)
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
    await assert_under_way(stopping)
    await shop.stop()
    assert stopping.done()


def test_an_inbox_starts_again_in_another_event_loop(shop: Inbox) -> None:
    async def start_twice(run: int) -> list[int]:
        statuses = await asyncio.gather(*(start_and_deliver(shop, f"evt_{run}_{n}") for n in range(2)))
        await asyncio.gather(shop.stop(), shop.stop())
        return statuses

    assert [asyncio.run(start_twice(run)) for run in range(2)] == [[202, 202], [202, 202]]


async def test_a_cancelled_stop_continues_and_a_second_cancellation_closes_the_store(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make_inbox(stop_grace="1h")
    inbox.source("stripe", secrets=["whsec_test"])
    inside, go_on = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "*")
    async def hang(event: Event) -> None:
        inside.set()
        await go_on.wait()

    async def live() -> None:
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
            inbox._runtime.start_worker()
            await inside.wait()

    life = asyncio.create_task(live())
    await eventually(lambda: inside.is_set() and inbox._runtime.worker is None)
    life.cancel()
    await stays_true(lambda: not life.done(), "the stop continues after it was cancelled once", seconds=0.05)
    await inbox._runtime.store.ping()
    life.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life
    with pytest.raises(Unavailable):
        await inbox._runtime.store.ping()
    go_on.set()
