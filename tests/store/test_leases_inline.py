"""Leases of inline receipts: a redelivery is the next attempt, with a lease of its own, and never another worker's."""

import pytest

from oncehook.model.lease import Leased, Settled
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.stores import claim_and_lease, claim_one, seconds_taken

pytestmark = pytest.mark.anyio

FIRST = 7
"""The fencing counter of each event's first attempt."""
NO_MORE = "the provider stopped retrying"


async def claim_inline(store: Store, event_id: str = "evt_1") -> int:
    """Claim an inline event, whose first attempt begins with the claim. Return its receipt."""
    claim = make_claim(event_id, inline_seconds=60.0, inline_lease=FIRST, status=State.PROCESSING)
    return await claim_one(store, claim)


async def fail_inline(store: Store, event_id: str = "evt_1") -> int:
    """Claim an inline event whose first attempt fails. Return its receipt."""
    receipt = await claim_inline(store, event_id)
    settled = Settled(receipt, FIRST, State.RETRYING, "retrying", after=3600.0, error="E: no")
    assert await store.leases.settle([settled]) == {receipt}
    return receipt


async def redeliver(store: Store, receipt: int) -> Leased | None:
    return await store.leases.take_one(receipt, 30, "receiver")


async def test_redelivery_gets_a_lease_that_excludes_other_redeliveries(store: Store, rows: Rows) -> None:
    receipt = await fail_inline(store)
    leased = await redeliver(store, receipt)
    assert leased is not None and (leased.receipt, leased.attempt) == (receipt, 2)
    assert await redeliver(store, receipt) is None, "its handler is running"
    before = Settled(receipt, FIRST, State.PROCESSED, "processed")
    assert await store.leases.settle([before]) == set(), "the first attempt must not settle the second"
    assert rows("SELECT status, worker FROM webhook_receipts") == [("processing", "receiver")]
    assert await store.leases.settle([Settled(receipt, leased.lease, State.PROCESSED, "processed")]) == {receipt}
    assert await redeliver(store, receipt) is None, "the event is processed"


async def test_lease_of_a_redelivery_expires_after_its_own_length(store: Store) -> None:
    receipt = await fail_inline(store)
    await store.schema.move_times_back(120)
    assert await redeliver(store, receipt) is not None
    await store.schema.move_times_back(20)
    assert await store.leases.expired(10, 0) == []
    assert await redeliver(store, receipt) is None
    await store.schema.move_times_back(20)
    assert [row.receipt for row in await store.leases.expired(10, 0)] == [receipt]
    again = await redeliver(store, receipt)
    assert again is not None and again.attempt == 3


async def test_attempt_of_a_redelivery_begins_with_its_lease(store: Store) -> None:
    receipt = await fail_inline(store)
    await store.schema.move_times_back(120)
    leased = await redeliver(store, receipt)
    assert leased is not None
    crashed = Settled(receipt, leased.lease, State.RETRYING, "crashed", after=3600.0, crashed=True)
    assert await store.leases.settle([crashed]) == {receipt}
    _, second = await store.receipts.attempts(receipt)
    assert seconds_taken(second) < 60


async def test_redelivery_leases_no_other_event(store: Store, rows: Rows) -> None:
    receipts = [await fail_inline(store, event_id) for event_id in ("evt_1", "evt_2", "evt_3")]
    leased = await redeliver(store, receipts[1])
    assert leased is not None
    assert (leased.event_id, leased.body) == ("evt_2", b'{"id": "evt_2"}') and leased.headers is not None
    statuses = rows("SELECT status FROM webhook_receipts ORDER BY id")
    assert statuses == [("retrying",), ("processing",), ("retrying",)]


async def test_redelivery_does_not_lease_an_event_that_workers_retry(store: Store, rows: Rows) -> None:
    """Its source was not inline when it arrived."""
    (leased,) = await claim_and_lease(store)
    retried = Settled(leased.receipt, leased.lease, State.RETRYING, "retrying", after=0.0, error="E: no")
    assert await store.leases.settle([retried]) == {leased.receipt}
    assert await redeliver(store, leased.receipt) is None
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("retrying", 1)]


async def test_abandoned_event_without_an_error_has_the_reason(store: Store, rows: Rows) -> None:
    """Its attempt was released by a process that stopped, so no error is known."""
    receipt = await claim_inline(store)
    assert await store.leases.release([(receipt, FIRST)], 60.0) == 1
    await store.schema.move_times_back(120)
    (row,) = await store.leases.abandon_inline(NO_MORE)
    assert row.last_error == NO_MORE
    columns = "status, last_error, failed_at IS NOT NULL, next_attempt_at"
    assert rows(f"SELECT {columns} FROM webhook_receipts") == [("failed", NO_MORE, True, None)]
