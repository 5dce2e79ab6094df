"""What two consumers of one event share, and what belongs to each: effects, entities, identities and keys."""

from collections.abc import Callable

import pytest

from oncehook import Effect, Event, Inbox, SyncEvent
from oncehook.testing import deliver
from tests.support.consumers import Handled, all_are, outcomes_are, record, send
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually
from tests.support.work import effects_are

pytestmark = pytest.mark.anyio

CONSUMERS = ("main", "ledger", "search")


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def test_consumers_that_request_the_same_effect_get_one(shop: Inbox, rows: Rows) -> None:
    calls: list[str] = []
    requested: list[bool] = []

    @shop.effect
    async def send_mail(effect: Effect) -> None:
        calls.append(effect.key)

    async def handle(event: Event) -> None:
        requested.append(await event.effect(f"mail:{event.object_id}", send_mail))

    for consumer in CONSUMERS:
        shop.on("stripe", "*", consumer=consumer)(handle)
    async with shop.lifespan():
        await send(shop, *(f"evt_{number}" for number in range(10)))
        for consumer in CONSUMERS:
            await eventually(all_are(rows, consumer, "processed", 10))
        await eventually(effects_are(rows, "done", 1))
    assert calls == ["mail:in_1"]
    assert sum(requested) == 1 and len(requested) >= 30
    assert rows("SELECT count(*) FROM webhook_noops WHERE reason = 'effect'") == [(29,)]


async def test_progress_of_one_consumer_makes_no_event_of_another_stale(shop: Inbox, rows: Rows) -> None:
    advanced: dict[str, list[bool]] = {consumer: [] for consumer in CONSUMERS}

    async def handle(event: Event) -> None:
        advanced[event.consumer].append(await event.advance("invoice", "in_1", version=int(event.id[-1])))

    for consumer in CONSUMERS:
        shop.on("stripe", "*", consumer=consumer)(handle)
    async with shop.lifespan():
        for event_id in ("evt_2", "evt_1"):
            await send(shop, event_id)
            expected = dict.fromkeys(CONSUMERS, "processed")
            await eventually(outcomes_are(rows, event_id, **expected))
    assert advanced == {consumer: [True, False] for consumer in CONSUMERS}


async def test_once_per_is_counted_per_consumer(shop: Inbox, rows: Rows) -> None:
    handled: Handled = []

    def handle(event: SyncEvent) -> None:
        handled.append((event.consumer, event.id))

    for consumer in CONSUMERS:
        shop.on("stripe", "*", consumer=consumer, once_per="object_id")(handle)
    async with shop.lifespan():
        await send(shop, "evt_1")
        await eventually(outcomes_are(rows, **dict.fromkeys(CONSUMERS, "processed")))
        await send(shop, "evt_2")
        await eventually(outcomes_are(rows, "evt_2", **dict.fromkeys(CONSUMERS, "processed")))
    assert sorted(handled) == sorted((consumer, "evt_1") for consumer in CONSUMERS)


async def test_idempotency_key_differs_by_consumer_and_stays_the_same_at_a_replay(shop: Inbox, rows: Rows) -> None:
    keys: list[tuple[str, str]] = []

    async def handle(event: Event) -> None:
        keys.append((event.consumer, event.idempotency_key("charge")))

    for consumer in CONSUMERS:
        shop.on("stripe", "*", consumer=consumer)(handle)
    async with shop.lifespan():
        await send(shop, "evt_1")
        await eventually(outcomes_are(rows, **dict.fromkeys(CONSUMERS, "processed")))
        assert (await shop.replay("evt_1")).count == 3
        await eventually(lambda: len(keys) == 6)
        await eventually(outcomes_are(rows, **dict.fromkeys(CONSUMERS, "processed")))
    assert len(set(keys)) == 3 and len({key for _, key in keys}) == 3


async def test_filter_of_a_consumer_ignores_an_event_for_that_consumer_only(shop: Inbox, rows: Rows) -> None:
    handled: Handled = []
    record(shop, handled, *CONSUMERS)
    shop.consumer("ledger", where={"livemode": True})
    async with shop.lifespan():
        body = stripe_body("evt_1", livemode=False)
        assert (await deliver(shop, "stripe", body)).outcome == (202, "accepted")
        await eventually(outcomes_are(rows, main="processed", ledger="ignored", search="processed"))
        assert (await shop.replay("evt_1", consumer="ledger")).count == 1
        await eventually(outcomes_are(rows, main="processed", ledger="processed", search="processed"))
    assert sorted(handled) == [("ledger", "evt_1"), ("main", "evt_1"), ("search", "evt_1")]
