"""Backfill: which events a consumer gets, with which status, and what happens at the same time."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import oncehook.operations.backfill as backfill_module
from oncehook import ConfigurationError, Event, Inbox
from oncehook.config.keyring import is_sealed
from oncehook.operations.backfill import Backfilled
from oncehook.store.rows import BackfillRow
from oncehook.testing import deliver
from tests.support.ages import set_age
from tests.support.encryption import assert_stored_nowhere, encrypted_inbox
from tests.support.events import Rows, stripe_body
from tests.support.retention import KEEP_30, prune_now
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

COPIES = "SELECT event_id, status, last_error FROM webhook_receipts WHERE consumer = 'ledger' ORDER BY received_at, id"


async def handle(event: Event) -> None: ...


@pytest.fixture(autouse=True)
def known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receivers know a consumer at once, so that a backfill does not wait for them."""
    monkeypatch.setattr(backfill_module, "KNOWN_AFTER", 0.0)


@pytest.fixture
def make_shop(make_inbox: Callable[..., Inbox]) -> Callable[..., Inbox]:
    """Makes an inbox with a Stripe source, and with the consumer `ledger` if it has settings."""

    def make(consumer: dict[str, Any] | None = None, pattern: str = "*", **source: Any) -> Inbox:
        inbox = make_inbox()
        inbox.source("stripe", secrets=["whsec_test"], **source)
        if consumer is not None:
            inbox.on("stripe", pattern, consumer="ledger")(handle)
            inbox.consumer("ledger", **consumer)
        return inbox

    return make


async def receive(inbox: Inbox, *bodies: bytes) -> None:
    async with inbox.lifespan():
        for body in bodies:
            assert (await deliver(inbox, "stripe", body)).status == 202


def invoices(number: int) -> list[bytes]:
    return [stripe_body(f"evt_{n}", amount=n) for n in range(number)]


async def test_consumer_gets_the_events_that_arrived_before_it(make_shop: Callable[..., Inbox], rows: Rows) -> None:
    await receive(make_shop(), *invoices(3))
    shop = make_shop({})
    done = await shop.backfill("ledger", since="1d", actor="ann")
    assert (done.matched, done.created, done.ignored, done.left) == (3, 3, 0, {})
    assert sorted(tuple(row[:2]) for row in rows(COPIES)) == [(f"evt_{n}", "received") for n in range(3)]
    assert (await shop.backfill("ledger", since="1d")).created == 0
    audited = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    assert [(actor, action) for actor, action, _ in audited[:2]] == [("ann", "backfill"), ("ann", "backfill_ended")]
    detail = json.loads(audited[1][2])
    assert (detail["consumer"], detail["outcome"], detail["created"]) == ("ledger", "done", 3)


async def test_filters_apply_as_if_the_events_arrived_now(make_shop: Callable[..., Inbox], rows: Rows) -> None:
    bodies = [
        stripe_body("evt_yes", amount=200),
        stripe_body("evt_small", amount=5),
        stripe_body("evt_type", type="charge.failed", amount=200),
        stripe_body("evt_pattern", type="customer.created", amount=200),
        stripe_body("evt_source", type="invoice.voided", amount=200),
    ]
    await receive(make_shop(), *bodies)
    settings = {"types": ["invoice.*", "customer.*"], "where": {"amount": {"gte": 100}}}
    shop = make_shop(settings, types=["invoice.paid", "charge.*", "customer.*"])
    shop.on("stripe", "charge.*", consumer="ledger")(handle)
    done = await shop.backfill("ledger", since="1d")
    assert done.left["left out by the source"] == 1
    found = {event_id: (status, error) for event_id, status, error in rows(COPIES)}
    assert found["evt_yes"] == ("received", None)
    assert found["evt_small"][0] == "ignored" and "amount" in found["evt_small"][1]
    assert found["evt_type"] == ("ignored", "the type charge.failed is not in consumers.ledger.types")
    assert "evt_source" not in found


async def test_event_that_no_handler_is_for_gets_no_receipt(make_shop: Callable[..., Inbox], rows: Rows) -> None:
    await receive(make_shop(), stripe_body("evt_1"), stripe_body("evt_2", type="charge.failed"))
    done = await make_shop({}, "charge.*").backfill("ledger", since="1d")
    assert (done.created, done.left) == (1, {"not subscribed": 1})
    assert [row[0] for row in rows(COPIES)] == ["evt_2"]


async def test_dry_run_counts_the_same_and_writes_nothing(make_shop: Callable[..., Inbox], rows: Rows) -> None:
    await receive(make_shop(), *invoices(4))
    shop = make_shop({"where": {"amount": {"gte": 1}}})
    planned = await shop.backfill("ledger", since="1d", dry_run=True)
    assert (planned.created, planned.ignored) == (3, 1)
    for table in ("webhook_consumers", "webhook_audit"):
        assert rows(f"SELECT count(*) FROM {table}") == [(0,)]
    assert rows(COPIES) == []
    assert await shop.backfill("ledger", since="1d") == planned


async def test_since_source_and_type_select_events(make_shop: Callable[..., Inbox], database: str, rows: Rows) -> None:
    await receive(make_shop(), stripe_body("evt_old"), stripe_body("evt_1"), stripe_body("evt_2", type="charge.failed"))
    set_age(database, "evt_old", 5)
    shop = make_shop({})
    assert (await shop.backfill("ledger", since="1d", type="charge")).created == 1
    assert (await shop.backfill("ledger", since=timedelta(days=1), source="stripe")).created == 1
    assert (await shop.backfill("ledger", since="30d")).created == 1
    assert {row[0] for row in rows(COPIES)} == {"evt_old", "evt_1", "evt_2"}


async def test_many_events_are_written_in_batches_with_progress(
    make_shop: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_module, "BATCH", 4)
    await receive(make_shop(), *invoices(10))
    progress: list[int] = []
    done = await make_shop({}).backfill("ledger", since="1d", progress=lambda so_far: progress.append(so_far.created))
    assert done.created == 10 and progress == [4, 8, 10]


async def test_events_that_arrive_before_receivers_know_the_consumer_are_covered(
    make_shop: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    receiver = make_shop()
    await receive(receiver, *invoices(2))
    shop = make_shop({})
    async with receiver.lifespan():
        seen: list[int] = []

        def progress(done: Backfilled) -> None:
            seen.append(done.created)

        monkeypatch.setattr(backfill_module, "KNOWN_AFTER", 1.0)
        running = asyncio.create_task(shop.backfill("ledger", since="1d", progress=progress))
        await eventually(lambda: bool(seen), "the first batch is written")
        receiver._runtime.sources["stripe"].reader.subscribers.subscriptions = ()  # it has not seen the change
        assert (await deliver(receiver, "stripe", stripe_body("evt_late"))).status == 202
        assert (await running).created == 3
    assert {row[0] for row in rows(COPIES)} == {"evt_0", "evt_1", "evt_late"}


async def test_event_that_is_committed_late_is_covered(
    make_shop: Callable[..., Inbox], monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    """The transaction of its claim began before the backfill, so its time is in the part that was read already."""
    receiver = make_shop()
    await receive(receiver, *invoices(2))
    shop = make_shop({})
    async with receiver.lifespan():
        seen: list[int] = []

        def progress(done: Backfilled) -> None:
            seen.append(done.created)

        monkeypatch.setattr(backfill_module, "KNOWN_AFTER", 1.0)
        running = asyncio.create_task(shop.backfill("ledger", since="1d", progress=progress))
        await eventually(lambda: bool(seen), "the first batch is written")
        receiver._runtime.sources["stripe"].reader.subscribers.subscriptions = ()  # it has not seen the change
        assert (await deliver(receiver, "stripe", stripe_body("evt_late"))).status == 202
        first = "(SELECT min(received_at) FROM webhook_receipts)"
        rows(f"UPDATE webhook_receipts SET received_at = {first} WHERE event_id = 'evt_late'")
        assert (await running).created == 3
    assert {row[0] for row in rows(COPIES)} == {"evt_0", "evt_1", "evt_late"}


async def test_payload_is_not_pruned_once_its_event_is_backfilled(
    make_shop: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    await receive(make_shop(), *invoices(2))
    for n in range(2):
        set_age(database, f"evt_{n}", 40, "processed")
    shop = make_shop({})
    await shop.backfill("ledger", since="60d")
    async with shop.lifespan():
        assert not (await prune_now(shop._runtime.store, KEEP_30)).receipts
    assert rows("SELECT count(*) FROM webhook_payloads") == [(2,)]


async def test_event_that_is_pruned_during_a_backfill_gets_no_receipt(
    make_shop: Callable[..., Inbox], rows: Rows
) -> None:
    await receive(make_shop(), *invoices(2))
    shop = make_shop({})
    async with shop.lifespan():
        store = shop._runtime.store
        insert = store.backfill.insert

        async def prune_first(consumer: str, planned: list[BackfillRow]) -> Any:
            rows(f"DELETE FROM webhook_payloads WHERE receipt_id = {planned[0].receipt}")
            return await insert(consumer, planned)

        store.backfill.insert = prune_first  # type: ignore[method-assign, assignment]
        done = await shop.backfill("ledger", since="1d")
    assert (done.created, done.left) == (1, {"received or pruned since": 1})


async def test_consumer_that_is_removed_during_a_backfill_ends_it(make_shop: Callable[..., Inbox], rows: Rows) -> None:
    await receive(make_shop(), *invoices(2))
    shop = make_shop({})
    async with shop.lifespan():
        store = shop._runtime.store
        page = store.backfill.page

        async def remove_first(*arguments: Any) -> Any:
            rows("DELETE FROM webhook_consumers")
            return await page(*arguments)

        store.backfill.page = remove_first  # type: ignore[method-assign, assignment]
        with pytest.raises(ConfigurationError, match="the consumer ledger was removed during the backfill"):
            await shop.backfill("ledger", since="1d")
    assert rows(COPIES) == []
    ((detail,),) = rows("SELECT detail FROM webhook_audit WHERE action = 'backfill_ended'")
    assert json.loads(detail)["outcome"] == "stopped"


@pytest.mark.parametrize(
    ("consumer", "source", "message"),
    [
        ("legder", None, "there is no consumer legder: did you mean ledger?"),
        ("main", None, "the consumer main has a receipt of every event"),
        ("ledger", "github", "the consumer ledger does not subscribe to github; its sources are stripe"),
    ],
)
async def test_unknown_names_are_errors(
    make_shop: Callable[..., Inbox], consumer: str, source: str | None, message: str
) -> None:
    shop = make_shop({})
    async with shop.lifespan():
        with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
            await shop.backfill(consumer, since="1d", source=source)


async def test_backfill_without_the_source_is_an_error(
    make_shop: Callable[..., Inbox], make_inbox: Callable[..., Inbox]
) -> None:
    await receive(make_shop({}))
    with pytest.raises(ConfigurationError, match="the source stripe is not configured here"):
        await make_inbox().backfill("ledger", since="1d")


async def test_filter_reads_an_encrypted_payload_and_its_reason_is_encrypted(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    bodies = [stripe_body("evt_1", note="Markertext"), stripe_body("evt_2", note="other")]
    await receive(encrypted_inbox(make_inbox), *bodies)
    shop = encrypted_inbox(make_inbox)
    shop.on("stripe", "*", consumer="ledger")(handle)
    shop.consumer("ledger", where={"note": "other"})
    done = await shop.backfill("ledger", since="1d")
    assert (done.created, done.ignored) == (1, 1)
    ((reason,),) = rows("SELECT last_error FROM webhook_receipts WHERE consumer = 'ledger' AND status = 'ignored'")
    assert is_sealed(reason)
    assert_stored_nowhere(database, "Markertext")


async def test_event_whose_key_is_missing_is_skipped_if_a_filter_reads_it(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    await receive(encrypted_inbox(make_inbox), stripe_body("evt_1"))
    shop = encrypted_inbox(make_inbox, "2026b")
    shop.on("stripe", "*", consumer="ledger")(handle)
    shop.consumer("ledger", where={"note": "other"})
    done = await shop.backfill("ledger", since="1d")
    assert (done.created, done.ignored, done.left) == (0, 0, {"key missing": 1})
    assert rows(COPIES) == []
