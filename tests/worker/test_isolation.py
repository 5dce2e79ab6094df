"""A quarantined receipt runs while no worker of the process runs anything else."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.store.leases import SqlLeaseStore
from oncehook.worker import worker
from tests.support.consumers import all_are, outcomes_are, send
from tests.support.events import Rows
from tests.support.waiting import eventually, let_time_pass

pytestmark = pytest.mark.anyio

CRASHED = "UPDATE webhook_receipts SET crashes = 1, attempts = 1, status = 'retrying' WHERE consumer = "


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox(concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def test_crashed_receipts_of_every_consumer_run_while_no_other_consumer_runs(shop: Inbox, rows: Rows) -> None:
    running: list[str] = []
    beside: list[list[str]] = []

    async def handle(event: Event) -> None:
        running.append(event.consumer)
        if event.attempt > 1:
            beside.append(list(running))
        await let_time_pass(0.01)
        if event.attempt > 1:
            beside.append(list(running))
        running.remove(event.consumer)

    for consumer in ("main", "ledger", "search"):
        shop.on("stripe", "*", consumer=consumer)(handle)
    async with shop.lifespan():
        await send(shop, *(f"evt_{number}" for number in range(6)))
        rows(CRASHED + "'ledger' OR consumer = 'search'")
        shop._runtime.start_worker()
        for consumer in ("main", "ledger", "search"):
            await eventually(all_are(rows, consumer, "processed", 6), f"{consumer} handles all events")
    assert len(beside) == 24
    assert {tuple(names) for names in beside} == {("ledger",), ("search",)}
    assert rows("SELECT DISTINCT attempts FROM webhook_receipts WHERE consumer = 'main'") == [(1,)]


async def test_leases_of_other_consumers_are_released_before_a_crashed_receipt_runs(
    shop: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased: list[int] = []
    release = asyncio.Event()
    release_leases = SqlLeaseStore.release

    async def release_slowly(self: SqlLeaseStore, *args: Any, **options: Any) -> Any:
        await let_time_pass(0.1)
        return await release_leases(self, *args, **options)

    monkeypatch.setattr(SqlLeaseStore, "release", release_slowly)

    @shop.on("stripe", "*")
    async def wait(event: Event) -> None:
        await release.wait()

    @shop.on("stripe", "*", consumer="ledger")
    async def count(event: Event) -> None:
        processing = "SELECT count(*) FROM webhook_receipts WHERE status = 'processing'"
        leased.append((await asyncio.to_thread(rows, processing))[0][0])

    async with shop.lifespan():
        await send(shop, "evt_1")
        rows(CRASHED + "'ledger'")
        await send(shop, *(f"evt_{number}" for number in range(2, 9)))
        rows("UPDATE webhook_receipts SET status = 'ignored' WHERE consumer = 'ledger' AND crashes = 0")
        shop._runtime.start_worker()
        main_leases = "SELECT count(*) FROM webhook_receipts WHERE consumer = 'main' AND status = 'processing'"
        await eventually(lambda: rows(main_leases)[0][0] > 0, "main leases receipts")
        release.set()
        await eventually(all_are(rows, "main", "processed", 8))
        await eventually(outcomes_are(rows, main="processed", ledger="processed"))
    assert leased == [1], "only the crashed receipt was leased while it ran"


async def test_crashed_receipt_that_runs_for_long_does_not_stop_other_consumers(
    shop: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ISOLATED_SECONDS", 0.2)
    started, release = asyncio.Event(), asyncio.Event()

    @shop.on("stripe", "*", consumer="ledger")
    async def hang(event: Event) -> None:
        started.set()
        await release.wait()

    shop.on("stripe", "*")(lambda event: None)
    async with shop.lifespan():
        await send(shop, "evt_1")
        rows(CRASHED + "'ledger'")
        shop._runtime.start_worker()
        await asyncio.wait_for(started.wait(), 30)
        await send(shop, "evt_2")
        await eventually(all_are(rows, "main", "processed", 2), "main continues")
        release.set()
        await eventually(all_are(rows, "ledger", "processed", 2))


@pytest.mark.sampled(1)
async def test_receipt_that_ends_early_does_not_end_the_isolation_of_the_next_one(
    shop: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own time. The second one still runs when the time of the first one would be over."""
    monkeypatch.setattr(worker, "ISOLATED_SECONDS", 2.0)
    started = asyncio.Event()
    order: list[str] = []

    @shop.on("stripe", "*", consumer="ledger")
    async def crash(event: Event) -> None:
        if event.id == "evt_2":
            started.set()
        await let_time_pass({"evt_1": 1.4, "evt_2": 1.0}.get(event.id, 0))
        order.append(f"ledger {event.id}")

    @shop.on("stripe", "*")
    async def other(event: Event) -> None:
        order.append(f"main {event.id}")

    async with shop.lifespan():
        await send(shop, "evt_1", "evt_2")
        rows(CRASHED + "'ledger'")
        shop._runtime.start_worker()
        await asyncio.wait_for(started.wait(), 30)
        await send(shop, "evt_3")
        for consumer in ("main", "ledger"):
            await eventually(all_are(rows, consumer, "processed", 3), f"{consumer} handles all events")
    assert order.index("main evt_3") > order.index("ledger evt_2"), "main waits for the crashed receipt"
