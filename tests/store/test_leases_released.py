"""Released receipts: the attempt does not count, and the receipt keeps its place among those that are due."""

import pytest

from oncehook.model.lease import Leased, LeaseKey, Settled
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.stores import claim_and_lease, event_ids, processed

pytestmark = pytest.mark.anyio

ROWS = "SELECT event_id, status, attempts, lease_until FROM webhook_receipts ORDER BY id"


async def lease_second_attempt(store: Store) -> list[Leased]:
    """Fail `evt_1` after `evt_2` has arrived, so that it is due later. Return the leases of both."""
    await store.claims.insert([make_claim("evt_1")])
    (first,) = await store.leases.take(10, 60, "first")
    await store.claims.insert([make_claim("evt_2")])
    await store.schema.move_times_back(60)
    retried = Settled(first.receipt, first.lease, State.RETRYING, "retrying", after=0.0, error="E: no")
    assert await store.leases.settle([retried]) == {first.receipt}
    await store.schema.move_times_back(1)
    return await lease_one_by_one(store, "first")


async def lease_one_by_one(store: Store, worker: str) -> list[Leased]:
    """Lease `evt_2`, which is due first, and then `evt_1`."""
    leased = [*await store.leases.take(1, 60, worker), *await store.leases.take(1, 60, worker)]
    assert event_ids(leased) == ["evt_2", "evt_1"], "receipts are leased in the order in which they are due"
    return leased


@pytest.mark.parametrize("way", ["release", "release_strays"])
async def test_released_receipts_keep_their_order_and_their_earlier_attempts(
    store: Store, rows: Rows, way: str
) -> None:
    leased = await lease_second_attempt(store)
    if way == "release":
        assert await store.leases.release([receipt.lease_key for receipt in leased]) == 2
    else:
        assert await store.leases.release_strays("first", []) == 2
    assert rows(ROWS) == [("evt_1", "retrying", 1, None), ("evt_2", "received", 0, None)]
    await lease_one_by_one(store, "second")


async def test_receipts_that_a_worker_has_settled_are_no_strays(store: Store, rows: Rows) -> None:
    """A processed event must not run again, and a dead letter only if a person replays it."""
    done, dead, stray = await claim_and_lease(store, 3)
    failed = Settled(dead.receipt, dead.lease, State.FAILED, "failed", error="E: no")
    assert await store.leases.settle([processed(done), failed]) == {done.receipt, dead.receipt}
    assert await store.leases.release_strays("first", []) == 1
    assert [row[1] for row in rows(ROWS)] == ["processed", "failed", "received"]
    assert stray.receipt not in {done.receipt, dead.receipt}


async def claim_with_one_fence(store: Store) -> list[LeaseKey]:
    """Claim two inline events whose leases have the same fencing counter, which is random."""
    claims = [make_claim(f"evt_{n}", inline_seconds=60.0, inline_lease=7, status=State.PROCESSING) for n in range(2)]
    return [(claimed.receipt, 7) for claimed in await store.claims.insert(claims)]


async def test_release_leaves_other_receipts_alone(store: Store, rows: Rows) -> None:
    (first, _) = await claim_with_one_fence(store)
    assert await store.leases.release([first], 60.0) == 1
    assert [row[1] for row in rows(ROWS)] == ["retrying", "processing"]


async def test_settle_leaves_other_receipts_alone(store: Store, rows: Rows) -> None:
    (first, _) = await claim_with_one_fence(store)
    assert await store.leases.settle([Settled(*first, State.PROCESSED, "processed")]) == {first[0]}
    assert [row[1] for row in rows(ROWS)] == ["processed", "processing"]
