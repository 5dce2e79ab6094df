"""The settler writes the results of many attempts in one statement."""

import asyncio
from collections.abc import Sequence

import pytest

from oncehook.model.errors import StoreUnavailable, Unavailable
from oncehook.model.lease import Leased, LeaseKey, Settled
from oncehook.model.states import State
from oncehook.store.store import Store
from oncehook.worker.settle import Settler
from tests.support.events import Rows, make_claim
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio


async def lease(store: Store, count: int) -> list[Leased]:
    await store.claims.insert([make_claim(f"evt_{number:02d}") for number in range(count)])
    return await store.leases.take(count, 30.0, "a test")


def processed(leased: Leased) -> Settled:
    return Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")


@pytest.fixture
def batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The receipts of each statement."""
    batches: list[list[int]] = []
    settle = store.leases.settle

    async def recording(settled: Sequence[Settled]) -> set[int]:
        batches.append([result.receipt for result in settled])
        return await settle(settled)

    # Both databases show the settled rows and not how many statements there were, so the real call is counted.
    monkeypatch.setattr(store.leases, "settle", recording)
    return batches


async def test_results_that_arrive_together_share_one_statement_in_the_order_of_receipts(
    store: Store, rows: Rows, batches: list[list[int]]
) -> None:
    settler, leased = Settler(store.leases), await lease(store, 30)
    assert await asyncio.gather(*(settler.settle(processed(receipt)) for receipt in reversed(leased))) == [True] * 30
    assert sum(map(len, batches)) == 30 and len(batches) <= 2
    assert all(batch == sorted(batch) for batch in batches), "in any other order, two workers could lock each other out"
    assert rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(30,)]


async def test_a_statement_settles_at_most_500_receipts(store: Store, batches: list[list[int]]) -> None:
    settler = Settler(store.leases)
    unknown = [Settled(receipt, 1, State.PROCESSED, "processed") for receipt in range(1, 502)]
    assert await asyncio.gather(*map(settler.settle, unknown)) == [False] * 501
    assert [len(batch) for batch in batches] == [500, 1]


async def test_only_the_receipt_whose_lease_was_lost_is_not_settled(store: Store, rows: Rows) -> None:
    settler, leased = Settler(store.leases), await lease(store, 3)
    lost = Settled(leased[1].receipt, leased[1].lease + 1, State.PROCESSED, "processed")
    results = await asyncio.gather(*map(settler.settle, [processed(leased[0]), lost, processed(leased[2])]))
    assert results == [True, False, True]
    assert rows("SELECT status FROM webhook_receipts ORDER BY id") == [("processed",), ("processing",), ("processed",)]


async def test_a_cancelled_caller_waits_for_its_result(store: Store, rows: Rows) -> None:
    settler, (leased,) = Settler(store.leases), await lease(store, 1)
    task = asyncio.create_task(settler.settle(processed(leased)))
    await asyncio.wait([task], timeout=0)
    task.cancel()
    assert await task is True, "a settled receipt must not look like a cancelled attempt"
    assert rows("SELECT status FROM webhook_receipts") == [("processed",)]


@pytest.mark.parametrize("error", [StoreUnavailable("the database is gone"), LookupError("a bug")])
async def test_a_failed_write_fails_every_waiting_receipt_and_the_next_write_works(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    settler, leased = Settler(store.leases), await lease(store, 2)

    async def fail(settled: Sequence[Settled]) -> set[int]:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(store.leases, "settle", fail)
        results = await asyncio.gather(
            *(settler.settle(processed(receipt)) for receipt in leased), return_exceptions=True
        )
    assert [isinstance(result, Unavailable) for result in results] == [True, True]
    assert await settler.settle(processed(leased[0])) is True


async def test_cancelled_write_fails_every_waiting_receipt_and_the_next_write_works(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    settler, leased = Settler(store.leases), await lease(store, 3)
    settle, started = store.leases.settle, asyncio.Event()

    async def hang(settled: Sequence[Settled]) -> set[int]:
        started.set()
        await asyncio.Event().wait()
        return set()

    monkeypatch.setattr(store.leases, "settle", hang)
    waiting = [asyncio.create_task(settler.settle(processed(leased[0])))]
    await started.wait()
    waiting.append(asyncio.create_task(settler.settle(processed(leased[1]))))  # it waits for the next write
    await next_turn()
    writing = settler._task
    assert writing is not None
    writing.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert writing.cancelled()
    assert [type(result) for result in results] == [StoreUnavailable, StoreUnavailable]
    monkeypatch.setattr(store.leases, "settle", settle)
    assert await settler.settle(processed(leased[2]))
    expected = [("processing",), ("processing",), ("processed",)]
    assert rows("SELECT status FROM webhook_receipts ORDER BY id") == expected, "a failed result was written later"


async def test_settled_receipts_have_no_lease_any_more(store: Store) -> None:
    settler, (leased,) = Settler(store.leases), await lease(store, 1)
    await settler.settle(processed(leased))
    held: LeaseKey = leased.lease_key
    assert await settler.settle(Settled(held[0], held[1], State.FAILED, "failed")) is False
