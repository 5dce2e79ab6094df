"""Leases and the fencing counter: a worker that lost its lease can neither settle nor release the receipt."""

import asyncio
import time

import pytest

from oncehook.model.lease import LeaseKey, Settled
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.servers import run_sql
from tests.support.stores import claim_and_lease, lose_lease, processed, seconds_taken
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


ROW = "SELECT status, lease, attempts FROM webhook_receipts ORDER BY id"


@pytest.mark.parametrize("status", [State.PROCESSED, State.RETRYING, State.FAILED])
async def test_worker_with_a_lost_lease_cannot_settle(store: Store, rows: Rows, status: State) -> None:
    (first,) = await claim_and_lease(store)
    again = await lose_lease(store, first)
    before = rows(ROW)
    assert await store.leases.settle([Settled(first.receipt, first.lease, status, status.value, after=1.0)]) == set()
    assert rows(ROW) == before == [("processing", again.lease, 2)]


async def test_worker_that_leases_its_receipt_again_cannot_settle_by_its_first_lease(store: Store, rows: Rows) -> None:
    (first,) = await claim_and_lease(store)
    assert await store.leases.release([first.lease_key]) == 1
    (again,) = await store.leases.take(1, 60, "first")
    assert await store.leases.settle([processed(first)]) == set(), "two leases of one worker need different fences"
    assert rows(ROW) == [("processing", again.lease, 1)]
    assert await store.leases.settle([processed(again)]) == {again.receipt}


async def test_worker_with_a_lost_lease_cannot_release(store: Store, rows: Rows) -> None:
    (first,) = await claim_and_lease(store)
    await lose_lease(store, first)
    before = rows(ROW)
    assert await store.leases.release([first.lease_key]) == 0
    assert rows(ROW) == before


async def test_batch_with_one_lost_lease_commits_nothing(store: Store, rows: Rows, database: str) -> None:
    run_sql(database, "CREATE TABLE ledger (note TEXT)")
    batch = await claim_and_lease(store, 3)
    again = await lose_lease(store, batch[1])
    transaction = store.transaction()
    connection = await transaction.connection()
    await connection.execute("INSERT INTO ledger VALUES ('of the batch')")
    assert await transaction.settle([processed(leased) for leased in batch]) is False
    assert rows("SELECT * FROM ledger") == []
    assert [row[:2] for row in rows(ROW)] == [
        ("processing", batch[0].lease),
        ("processing", again.lease),
        ("processing", batch[2].lease),
    ]


async def test_failed_attempt_ends_the_quarantine_of_a_crashed_receipt(store: Store) -> None:
    (first,) = await claim_and_lease(store)
    again = await lose_lease(store, first)
    assert await store.leases.settle([Settled(again.receipt, again.lease, State.RETRYING, "retrying", after=0.0)])
    await eventually(lambda: store.leases.take(1, 60, "third"), "the receipt is leased without `rescued`", within=10)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)  # SQLite uses the clock of this process
async def test_lease_expires_by_the_clock_of_the_database(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    await claim_and_lease(store, seconds=60)
    monkeypatch.undo()
    ((left,),) = rows("SELECT extract(epoch FROM lease_until - now())::float FROM webhook_receipts")
    assert 0 < left <= 60


async def test_released_receipt_is_due_later_and_uses_no_attempt(store: Store, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2")
    later, now = await store.leases.take(2, 30, "test")
    assert await store.leases.release([later.lease_key], 60.0) == 1
    assert await store.leases.release([now.lease_key]) == 1
    assert await store.leases.release([later.lease_key], 0.0) == 0, "a lease can be released only once"
    (again,) = await store.leases.take(2, 30, "test")
    assert (again.receipt, again.attempt) == (now.receipt, 1)
    assert rows("SELECT attempts, status FROM webhook_receipts ORDER BY id") == [
        (0, "received"),
        (1, "processing"),
    ]


async def test_stray_receipts_of_a_worker_are_released_without_an_attempt(store: Store, rows: Rows) -> None:
    known, stray = await claim_and_lease(store, 2)
    assert await store.leases.release_strays("first", [known.receipt]) == 1
    assert await store.leases.release_strays("another worker", []) == 0
    assert rows("SELECT status, attempts FROM webhook_receipts ORDER BY id") == [("processing", 1), ("received", 0)]
    assert stray.receipt != known.receipt


async def test_expired_leases_are_read_in_pages(store: Store) -> None:
    receipts = [leased.receipt for leased in await claim_and_lease(store, 3, seconds=60.0)]
    assert await store.leases.expired(2, 0) == []
    await store.schema.move_times_back(120)
    first = await store.leases.expired(2, 0)
    rest = await store.leases.expired(2, first[-1].receipt)
    assert [row.receipt for row in first + rest] == receipts


async def extend(store: Store, key: LeaseKey, seconds: float) -> None:
    """Extend a lease as the heartbeat does."""
    connection = store.heartbeat_connection()

    def beat() -> None:
        try:
            connection.extend([key], seconds)
        finally:
            connection.close()

    await asyncio.to_thread(beat)


async def test_pages_of_expired_leases_skip_none_in_whatever_order_they_expired(store: Store) -> None:
    """A sweep continues after the last receipt of a page. The first receipt is extended, so it expires last."""
    leased = await claim_and_lease(store, 3, seconds=60.0)
    await extend(store, leased[0].lease_key, 90.0)
    await store.schema.move_times_back(120)
    found: list[int] = []
    while page := await store.leases.expired(1, found[-1] if found else 0):
        assert len(page) == 1, "a page must have at most as many receipts as asked for"
        found.append(page[0].receipt)
    assert found == [receipt.receipt for receipt in leased]


async def test_heartbeat_extends_only_the_receipts_of_its_worker(store: Store) -> None:
    """Also among receipts whose leases have the same fencing counter."""
    inline = [make_claim(f"evt_{n}", inline_seconds=60.0, inline_lease=7, status=State.PROCESSING) for n in range(2)]
    first, second = await store.claims.insert(inline)
    await extend(store, (first.receipt, 7), 3600.0)
    await store.schema.move_times_back(120)
    assert [row.receipt for row in await store.leases.expired(10, 0)] == [second.receipt]


async def test_attempt_of_a_crashed_worker_began_with_its_lease_not_with_its_last_heartbeat(store: Store) -> None:
    (leased,) = await claim_and_lease(store)
    await store.schema.move_times_back(120)
    await extend(store, leased.lease_key, 60.0)
    crashed = Settled(leased.receipt, leased.lease, State.RETRYING, "crashed", after=0.0, crashed=True)
    assert await store.leases.settle([crashed]) == {leased.receipt}
    (attempt,) = await store.receipts.attempts(leased.receipt)
    assert seconds_taken(attempt) >= 120


async def test_heartbeat_does_not_lease_a_settled_receipt_again(store: Store, rows: Rows) -> None:
    """It may be sent while its handler settles."""
    (leased,) = await claim_and_lease(store)
    assert await store.leases.settle([processed(leased)]) == {leased.receipt}
    await extend(store, leased.lease_key, 60.0)
    assert rows("SELECT status, lease_until FROM webhook_receipts") == [("processed", None)]


async def test_inline_receipt_is_leased_only_while_it_is_retrying_or_expired(store: Store) -> None:
    (claimed,) = await store.claims.insert([make_claim("evt_1", inline_seconds=60.0, status=State.PROCESSING)])
    assert await store.leases.take_one(claimed.receipt, 30, "worker") is None, "its first attempt is running"
    await store.leases.settle([Settled(claimed.receipt, 0, State.RETRYING, "retrying", after=60.0, error="no")])
    leased = await store.leases.take_one(claimed.receipt, 30, "worker")
    assert leased is not None and leased.attempt == 2
    assert await store.leases.take(10, 30, "worker") == [], "workers never lease inline receipts"


async def test_inline_receipt_that_is_released_waits_for_its_redelivery(store: Store, rows: Rows) -> None:
    (claimed,) = await store.claims.insert([make_claim("evt_1", inline_seconds=60.0, status=State.PROCESSING)])
    assert await store.leases.release([(claimed.receipt, 0)], 60.0) == 1
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("retrying", 0)]
    leased = await store.leases.take_one(claimed.receipt, 30, "worker")
    assert leased is not None and leased.attempt == 1


async def test_inline_receipt_is_abandoned_when_its_provider_stops_retrying(store: Store, rows: Rows) -> None:
    (claimed,) = await store.claims.insert([make_claim("evt_1", inline_seconds=60.0, status=State.PROCESSING)])
    await store.leases.settle([Settled(claimed.receipt, 0, State.RETRYING, "retrying", after=60.0, error="E: no")])
    assert await store.leases.abandon_inline("the provider stopped retrying") == []
    await store.schema.move_times_back(120)
    (row,) = await store.leases.abandon_inline("the provider stopped retrying")
    assert row.last_error == "the provider stopped retrying; the last error was: E: no"
    assert rows("SELECT status FROM webhook_receipts") == [("failed",)]


async def test_next_due_is_negative_for_an_overdue_receipt(store: Store) -> None:
    assert await store.leases.next_due() is None
    await claim(store, "evt_1")
    due = await store.leases.next_due()
    assert due is not None and due <= 0
