"""The workers of a process: slots per consumer."""

from collections.abc import Callable

import pytest

from oncehook import Event, Inbox
from oncehook.runtime.workers import all_slots, slots_of

pytestmark = pytest.mark.anyio


async def handle(event: Event) -> None: ...


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox(concurrency=5)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.on("stripe", "*")(handle)
    return inbox


def test_each_consumer_has_its_own_slots(shop: Inbox) -> None:
    shop.on("stripe", "*", consumer="ledger")(handle)
    shop.on("stripe", "*", consumer="search")(handle)
    shop.consumer("search", concurrency=2)
    shop.consumer("analytics", forward="https://example.com/hooks")
    slots = {name: slots_of(shop._runtime, name) for name in shop._runtime.handlers.consumers}
    assert slots == {"main": 5, "analytics": 5, "ledger": 5, "search": 2}
    assert all_slots(shop._runtime) == 17


async def test_process_runs_one_worker_per_consumer_under_one_name(shop: Inbox) -> None:
    shop.on("stripe", "*", consumer="ledger")(handle)
    async with shop.lifespan():
        runtime = shop._runtime
        runtime.start_worker()
        assert runtime.worker is not None
        assert [(w.consumer, w.name) for w in runtime.consumer_workers] == [("ledger", runtime.worker.name)]
        await runtime.stop_work()
        assert runtime.consumer_workers == []


async def test_inbox_without_named_consumers_has_one_worker(shop: Inbox) -> None:
    async with shop.lifespan():
        shop._runtime.start_worker()
        assert shop._runtime.consumer_workers == []


def test_consumer_has_fewer_slots_than_main_by_default(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(concurrency=64)
    assert (slots_of(inbox._runtime, "main"), slots_of(inbox._runtime, "ledger")) == (64, 8)
