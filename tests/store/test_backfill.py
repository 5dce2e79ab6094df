"""Backfilled receipts on every store."""

from datetime import UTC, datetime, timedelta

import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.store.rows import BackfillRange, BackfillRow
from oncehook.store.store import Store
from tests.support.ages import set_age
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio

START = (datetime(1970, 1, 1, tzinfo=UTC), 0)


@pytest.fixture
def registered(rows: Rows) -> None:
    """The consumer `ledger` subscribes to the source stripe."""
    rows(
        "INSERT INTO webhook_consumers (name, source, patterns, settings, revision) "
        "VALUES ('ledger', 'stripe', '[\"*\"]', '{}', 1)"
    )


async def events_of(store: Store, type_: str | None = None, days: float = 3650) -> BackfillRange:
    now = await store.operations.now()
    return BackfillRange("ledger", ("stripe",), now - timedelta(days=days), now, type_)


async def test_page_has_the_events_that_the_consumer_has_no_receipt_of_oldest_first(
    store: Store, database: str, rows: Rows, registered: None
) -> None:
    await claim(store, "evt_old", "evt_new", "evt_erased")
    await claim(store, "evt_had", copies=(ConsumerClaim("ledger"),))
    await claim(store, "evt_other", copies=(ConsumerClaim("analytics"),))
    await claim(store, "evt_github", source="github")
    set_age(database, "evt_old", 3)
    rows(
        "DELETE FROM webhook_payloads WHERE receipt_id = (SELECT id FROM webhook_receipts WHERE event_id='evt_erased')"
    )
    events = await events_of(store)
    first = await store.backfill.page(events, START, 1)
    rest = await store.backfill.page(events, (first[0].received_at, first[0].receipt), 10)
    assert [event.event_id for event in first + rest] == ["evt_old", "evt_new", "evt_other"]
    assert await store.backfill.count(events) == 3
    assert await store.backfill.count(await events_of(store, days=1)) == 2
    assert await store.backfill.count(await events_of(store, "invoice")) == 3
    assert await store.backfill.count(await events_of(store, "charge.*")) == 0


async def test_receipts_are_written_once_and_are_due_now_with_the_time_of_their_event(
    store: Store, database: str, rows: Rows, registered: None
) -> None:
    first, second = await claim(store, "evt_1", "evt_2", serial_key="in_7", tenant="acme", object_id="in_7")
    set_age(database, "evt_1", 3)
    wanted = [BackfillRow(first, "received", None), BackfillRow(second, "ignored", "the type is not in types")]
    assert await store.backfill.insert("ledger", wanted) == {first: "received", second: "ignored"}
    assert await store.backfill.insert("ledger", wanted) == {}
    facts = "source, event_id, tenant, type, object_id, received_at, serial_key, fingerprint, provider, correlation_id"
    mains = rows(f"SELECT {facts} FROM webhook_receipts WHERE main_id IS NULL ORDER BY id")
    assert rows(f"SELECT {facts} FROM webhook_receipts WHERE main_id IS NOT NULL ORDER BY main_id") == mains
    state = "SELECT main_id, consumer, status, last_error, next_attempt_at IS NOT NULL, replayed_at = next_attempt_at"
    assert [
        tuple(row) for row in rows(f"{state} FROM webhook_receipts WHERE main_id IS NOT NULL ORDER BY main_id")
    ] == [
        (first, "ledger", "received", None, True, True),
        (second, "ledger", "ignored", "the type is not in types", False, None),
    ]
    (leased,) = await store.leases_of("ledger").take(10, 30, "worker-1")
    assert leased.event_id == "evt_1" and leased.body is not None


async def test_no_receipt_is_written_without_a_payload_or_for_a_removed_consumer(
    store: Store, rows: Rows, registered: None
) -> None:
    first, second = await claim(store, "evt_1", "evt_2")
    rows(f"DELETE FROM webhook_payloads WHERE receipt_id = {first}")
    wanted = [BackfillRow(receipt, "received", None) for receipt in (first, second)]
    assert await store.backfill.insert("ledger", wanted) == {second: "received"}
    rows("DELETE FROM webhook_consumers")
    assert await store.backfill.insert("ledger", wanted) is None


async def test_payloads_are_read_as_they_are_stored(store: Store) -> None:
    first, _ = await claim(store, "evt_1", "evt_2")
    (row,) = await store.backfill.payloads([first])
    assert (row.receipt, row.body) == (first, b'{"id": "evt_1"}') and "content-type" in row.headers
