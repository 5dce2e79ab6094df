"""The consumers of an event, from outside: through the receiver and real workers, on both databases.

One that fails, hangs or is paused changes neither the response to the provider nor the work of another.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry, SyncEvent
from oncehook.testing import deliver
from tests.support.consumers import Handled, all_are, outcomes, outcomes_are, record, send
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually, stays_true
from tests.support.work import QUICK

pytestmark = pytest.mark.anyio

ONCE = Retry(attempts=1)


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox(worker=True, concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


@pytest.fixture
def handled() -> Handled:
    return []


# -- failures -------------------------------------------------------------------------------------------------------


async def test_failing_consumer_changes_neither_the_response_nor_the_work_of_others(
    shop: Inbox, rows: Rows, handled: Handled
) -> None:
    record(shop, handled, "main", "ledger")

    @shop.on("stripe", "*", consumer="search", retry=QUICK)
    async def fail(event: Event) -> None:
        raise RuntimeError("the search index is down")

    async with shop.lifespan():
        await send(shop, "evt_1", "evt_2")
        for event_id in ("evt_1", "evt_2"):
            expected = {"main": "processed", "ledger": "processed", "search": "failed"}
            await eventually(outcomes_are(rows, event_id, **expected), "each consumer has its own outcome")
    assert sorted(handled) == [(name, event_id) for name in ("ledger", "main") for event_id in ("evt_1", "evt_2")]
    attempts = rows("SELECT DISTINCT consumer, attempts FROM webhook_receipts ORDER BY consumer")
    assert attempts == [("ledger", 1), ("main", 1), ("search", 3)]
    dead = rows("SELECT event_id, last_error FROM webhook_dlq ORDER BY event_id")
    assert dead == [(event_id, "RuntimeError: the search index is down") for event_id in ("evt_1", "evt_2")]


async def test_failing_main_does_not_stop_the_other_consumers(shop: Inbox, rows: Rows, handled: Handled) -> None:
    record(shop, handled, "ledger")

    @shop.on("stripe", "*", retry=ONCE)
    async def fail(event: Event) -> None:
        raise RuntimeError("no")

    async with shop.lifespan():
        await send(shop, "evt_1")
        await eventually(outcomes_are(rows, main="failed", ledger="processed"), "the ledger works without main")


async def test_work_of_each_consumer_commits_with_its_own_processed_status(shop: Inbox, rows: Rows) -> None:
    rows("CREATE TABLE booked (consumer TEXT NOT NULL, attempt INTEGER NOT NULL)")
    values = "$1, $2" if shop._runtime.settings.database.startswith("postgresql") else "?, ?"

    async def book(event: Event, tx: Any) -> None:
        await tx.execute(f"INSERT INTO booked VALUES ({values})", event.consumer, event.attempt)
        if event.consumer == "search" or (event.consumer == "ledger" and event.attempt == 1):
            raise RuntimeError("after its writes")

    for consumer in ("main", "ledger", "search"):
        shop.on("stripe", "*", consumer=consumer, retry=QUICK)(book)
    async with shop.lifespan():
        await send(shop, "evt_1")
        await eventually(outcomes_are(rows, main="processed", ledger="processed", search="failed"))
    assert rows("SELECT consumer, attempt FROM booked ORDER BY consumer") == [("ledger", 2), ("main", 1)]


async def test_consumer_that_lost_its_lease_cannot_commit_and_the_others_can(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    rows("CREATE TABLE booked (consumer TEXT NOT NULL)")
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    value = "$1" if inbox._runtime.settings.database.startswith("postgresql") else "?"

    async def book(event: Event, tx: Any) -> None:
        if event.consumer == "ledger" and event.attempt == 1:  # as if another worker had leased it since
            await asyncio.to_thread(rows, f"UPDATE webhook_receipts SET lease = lease + 1 WHERE id = {event.receipt}")
        await tx.execute(f"INSERT INTO booked VALUES ({value})", event.consumer)

    inbox.on("stripe", "*")(book)
    inbox.on("stripe", "*", consumer="ledger")(book)
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(outcomes_are(rows, main="processed", ledger="processing"), "main is processed")
        await stays_true(lambda: rows("SELECT consumer FROM booked") == [("main",)], "the ledger cannot commit")


# -- slow consumers -------------------------------------------------------------------------------------------------


async def test_consumer_whose_slots_are_all_busy_delays_no_other(shop: Inbox, rows: Rows, handled: Handled) -> None:
    record(shop, handled, "main", "ledger")
    release = asyncio.Event()

    @shop.on("stripe", "*", consumer="search")
    async def wait(event: Event) -> None:
        await release.wait()

    async with shop.lifespan():
        await send(shop, *(f"evt_{number}" for number in range(20)))
        for consumer in ("main", "ledger"):
            await eventually(all_are(rows, consumer, "processed", 20), f"{consumer} works while search hangs")
        running = "SELECT count(*) FROM webhook_receipts WHERE consumer = 'search' AND status = 'processed'"
        assert rows(running) == [(0,)]
        release.set()
        await eventually(all_are(rows, "search", "processed", 20), "search continues")


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """An event that threads of a test wait for. It is set at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # it is about threads
async def test_plain_functions_that_hang_take_no_threads_from_another_consumer(
    shop: Inbox, rows: Rows, hanging: threading.Event
) -> None:
    @shop.on("stripe", "*", consumer="search", retry=ONCE, timeout=0.05)
    def hang(event: SyncEvent) -> None:
        hanging.wait()

    @shop.on("stripe", "*", consumer="ledger")
    def book(event: SyncEvent) -> None: ...

    shop.on("stripe", "*")(lambda event: None)
    async with shop.lifespan():
        await send(shop, *(f"evt_{number:02d}" for number in range(30)))
        given_up = "SELECT count(*) >= 8 FROM webhook_receipts WHERE consumer = 'search' AND status = 'failed'"
        await eventually(lambda: rows(given_up)[0][0], "search has abandoned as many threads as it may")
        await send(shop, "evt_99")
        for consumer in ("main", "ledger"):
            await eventually(all_are(rows, consumer, "processed", 31), f"{consumer} has its own threads", within=8)
        hanging.set()  # calls that wait for a thread would delay the stop


# -- pauses ---------------------------------------------------------------------------------------------------------


async def test_paused_consumer_waits_and_the_others_continue(shop: Inbox, rows: Rows, handled: Handled) -> None:
    record(shop, handled, "main", "ledger", "search")
    async with shop.lifespan():
        pauses = shop._runtime.store.pauses
        assert await pauses.pause("", "a test", consumer="search")
        await send(shop, "evt_1", "evt_2")
        await eventually(outcomes_are(rows, "evt_2", main="processed", ledger="processed", search="received"))
        await stays_true(lambda: ("search", "evt_1") not in handled, "search is paused")
        assert await pauses.resume("", "a test", consumer="search")
        await eventually(all_are(rows, "search", "processed", 2), "search handles what waited")
    assert len(handled) == 6


async def test_paused_source_is_paused_for_every_consumer(shop: Inbox, rows: Rows, handled: Handled) -> None:
    record(shop, handled, "main", "ledger")
    async with shop.lifespan():
        await shop.pause("stripe")
        await send(shop, "evt_1")
        await stays_true(lambda: outcomes(rows) == {"main": "received", "ledger": "received"}, "the source is paused")
        await shop.resume("stripe")
        await eventually(outcomes_are(rows, main="processed", ledger="processed"))


# -- replays and order ----------------------------------------------------------------------------------------------


async def test_replay_of_one_consumer_leaves_the_others_alone(shop: Inbox, rows: Rows, handled: Handled) -> None:
    is_fixed = False
    record(shop, handled, "main", "ledger")

    @shop.on("stripe", "*", consumer="search", retry=ONCE)
    async def fail(event: Event) -> None:
        if not is_fixed:
            raise RuntimeError("the search index is down")

    async with shop.lifespan():
        await send(shop, "evt_1", "evt_2")
        await eventually(all_are(rows, "search", "failed", 2))
        for consumer in ("main", "ledger"):
            await eventually(all_are(rows, consumer, "processed", 2))
        is_fixed = True
        assert (await shop.replay("evt_1", consumer="search")).count == 1
        await eventually(outcomes_are(rows, main="processed", ledger="processed", search="processed"))
        assert (await shop.replay(consumer="ledger", status="processed")).count == 2
        await eventually(lambda: len(handled) == 6, "the ledger handles both events again")
        await eventually(all_are(rows, "ledger", "processed", 2))
    assert outcomes(rows, "evt_2")["search"] == "failed"
    replays = rows("SELECT consumer, sum(replays) FROM webhook_receipts GROUP BY consumer ORDER BY consumer")
    assert [(name, int(count)) for name, count in replays] == [("ledger", 2), ("main", 0), ("search", 1)]


async def test_serial_order_holds_per_consumer(make_inbox: Callable[..., Inbox], rows: Rows, handled: Handled) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
    record(inbox, handled, "main")

    @inbox.on("stripe", "*", consumer="ledger", retry=ONCE)
    async def book(event: Event) -> None:
        handled.append((event.consumer, event.id))
        if event.id == "evt_2" and not event.replays:
            raise RuntimeError("no")

    async with inbox.lifespan():
        await send(inbox, "evt_1", "evt_2", "evt_3", "evt_4")
        await eventually(all_are(rows, "main", "processed", 4), "a dead letter of the ledger does not block main")
        await eventually(lambda: outcomes(rows, "evt_2")["ledger"] == "failed")
        await stays_true(lambda: outcomes(rows, "evt_3")["ledger"] == "received", "it blocks the key of the ledger")
        await inbox.replay("evt_2", consumer="ledger")
        await eventually(all_are(rows, "ledger", "processed", 4))
    order = {name: [event_id for consumer, event_id in handled if consumer == name] for name in ("main", "ledger")}
    assert order["main"] == ["evt_1", "evt_2", "evt_3", "evt_4"]
    assert order["ledger"] == ["evt_1", "evt_2", "evt_2", "evt_3", "evt_4"]


# -- deliveries -----------------------------------------------------------------------------------------------------


async def test_concurrent_duplicates_make_one_receipt_per_consumer(shop: Inbox, rows: Rows, handled: Handled) -> None:
    record(shop, handled, "main", "ledger")
    record(shop, handled, "search", pattern="charge.*")
    async with shop.lifespan():
        first = await deliver(shop, "stripe", stripe_body("evt_1"), copies=20)
        assert first.outcome == (202, "accepted")
        assert {copy.outcome for copy in first.others} == {(200, "duplicate")}
        await eventually(outcomes_are(rows, main="processed", ledger="processed"), "search is not for invoices")
        assert (await deliver(shop, "stripe", stripe_body("evt_1"))).outcome == (200, "duplicate")
    assert sorted(handled) == [("ledger", "evt_1"), ("main", "evt_1")]


async def test_each_event_of_a_batch_delivery_has_its_own_consumers(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("gocardless", secrets=["key"])
    for pattern, consumer in (("*", "main"), ("*", "ledger"), ("payments.failed", "search")):
        inbox.on("gocardless", pattern, consumer=consumer)(lambda event: None)
    async with inbox.lifespan():
        kinds = enumerate(["created", "failed", "paid_out"])
        events = [{"id": f"EV{number}", "resource_type": "payments", "action": kind} for number, kind in kinds]
        assert (await deliver(inbox, "gocardless", {"events": events})).status == 202
        await eventually(all_are(rows, "main", "processed", 3))
        await eventually(all_are(rows, "ledger", "processed", 3))
        await eventually(all_are(rows, "search", "processed", 1))
    assert rows("SELECT event_id FROM webhook_receipts WHERE consumer = 'search'") == [("EV1",)]
    assert rows("SELECT count(*) FROM webhook_payloads") == [(3,)], "the payload of an event is stored once"


async def test_batch_handler_of_a_consumer_gets_only_its_own_receipts(shop: Inbox, rows: Rows) -> None:
    batches: list[list[tuple[str, str]]] = []

    async def many(events: list[Event]) -> None:
        batches.append([(event.consumer, event.id) for event in events])
        if len(events) > 1 and events[0].consumer == "ledger":
            raise RuntimeError("the batch fails, and its events run one by one")

    shop.on("stripe", "*", batch=10)(many)
    shop.on("stripe", "*", consumer="ledger", batch=10)(many)
    async with shop.lifespan():
        await shop.pause("stripe")
        await send(shop, *(f"evt_{number}" for number in range(10)))
        await shop.resume("stripe")
        for consumer in ("main", "ledger"):
            await eventually(all_are(rows, consumer, "processed", 10))
    assert all(len({consumer for consumer, _ in batch}) == 1 for batch in batches)
    assert any(len(batch) > 1 for batch in batches)
    assert rows("SELECT DISTINCT attempts FROM webhook_receipts") == [(1,)]
