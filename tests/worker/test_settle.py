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
def batch_sizes(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of receipts in each statement."""
    sizes: list[int] = []
    settle = store.leases.settle

    async def recording(settled: Sequence[Settled]) -> set[int]:
        sizes.append(len(settled))
        return await settle(settled)

    # Both databases show the settled rows and not how many statements there were, so the real call is counted.
    monkeypatch.setattr(store.leases, "settle", recording)
    return sizes


async def test_results_that_arrive_together_share_one_statement(
    store: Store, rows: Rows, batch_sizes: list[int]
) -> None:
    settler, leased = Settler(store.leases), await lease(store, 30)
    assert await asyncio.gather(*(settler.settle(processed(receipt)) for receipt in leased)) == [True] * 30
    assert sum(batch_sizes) == 30 and len(batch_sizes) <= 2
    assert rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(30,)]


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
    store: Store, monkeypatch: pytest.MonkeyPatch
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
    assert settler._task is not None
    settler._task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable, StoreUnavailable]
    monkeypatch.setattr(store.leases, "settle", settle)
    assert await settler.settle(processed(leased[2]))


async def test_settled_receipts_have_no_lease_any_more(store: Store) -> None:
    settler, (leased,) = Settler(store.leases), await lease(store, 1)
    await settler.settle(processed(leased))
    held: LeaseKey = leased.lease_key
    assert await settler.settle(Settled(held[0], held[1], State.FAILED, "failed")) is False
