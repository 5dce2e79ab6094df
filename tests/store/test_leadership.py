"""One process at a time is the leader of a task, and a former leader changes nothing."""

import asyncio

import pytest

from oncehook.operations.prune import cutoffs, prune
from oncehook.store.executor import Run
from oncehook.store.leadership import Leadership, LeadershipLost, hold
from oncehook.store.store import Store
from tests.support.ages import set_age
from tests.support.clocks import set_clock_back
from tests.support.events import Rows
from tests.support.retention import KEEP_30, stored_events
from tests.support.stores import open_store
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def lead(store: Store, seconds: float = 60.0) -> Leadership:
    leadership = await store.leadership.take("task", seconds)
    assert leadership is not None
    return leadership


async def test_one_of_many_processes_becomes_the_leader(database: str) -> None:
    async with open_store(database) as first, open_store(database) as second:
        taking = [store.leadership.take("task", 60.0) for store in [first, second] * 5]
        leaders = [leadership for leadership in await asyncio.gather(*taking) if leadership is not None]
    assert len(leaders) == 1 and leaders[0].number == 1


async def test_each_task_has_its_own_leader(store: Store) -> None:
    await lead(store)
    assert await store.leadership.take("another task", 60.0) is not None
    assert await store.leadership.take("task", 60.0) is None
    assert [(row.task, row.number, row.is_held) for row in await store.leadership.leaders()] == [
        ("another task", 1, True),
        ("task", 1, True),
    ]


async def test_taking_a_task_over_leaves_the_leader_of_another_task(store: Store) -> None:
    """Its leader continues after its term, as no other process took over."""
    other = await store.leadership.take("another task", 60.0)
    former = await lead(store)
    await store.schema.move_times_back(61)
    assert (await lead(store)).number == former.number + 1
    assert other is not None
    await store.leadership.extend(other, 60.0)


async def test_leader_that_stalled_for_its_term_is_replaced_and_cannot_extend(store: Store) -> None:
    former = await lead(store)
    await store.schema.move_times_back(61)
    successor = await lead(store)
    assert successor.number == former.number + 1
    with pytest.raises(LeadershipLost):
        await store.leadership.extend(former, 60.0)
    await store.leadership.release(former)
    assert await store.leadership.take("task", 60.0) is None, "a former leader must not release its successor"


async def test_leader_that_extends_its_term_stays_the_leader(store: Store) -> None:
    leadership = await lead(store)
    await store.schema.move_times_back(50)
    await store.leadership.extend(leadership, 60.0)
    await store.schema.move_times_back(50)
    assert await store.leadership.take("task", 60.0) is None


async def test_extending_never_shortens_a_term(store: Store) -> None:
    leadership = await lead(store, 600.0)
    await store.leadership.extend(leadership, 0.0)
    await store.schema.move_times_back(500)
    assert await store.leadership.take("task", 60.0) is None


async def test_leader_with_an_expired_term_continues_if_no_other_process_took_over(store: Store) -> None:
    leadership = await lead(store)
    await store.schema.move_times_back(61)
    await store.leadership.extend(leadership, 60.0)
    assert await store.leadership.take("task", 60.0) is None


async def test_block_releases_the_leadership_at_its_end(store: Store) -> None:
    async with store.leadership.taken("task", 60.0) as leadership:
        assert leadership is not None and await store.leadership.take("task", 60.0) is None
    assert await store.leadership.take("task", 60.0) is not None


async def test_same_counter_of_another_process_does_not_match(store: Store, rows: Rows) -> None:
    """After a failover to an asynchronous standby, the counter of the new primary may have gone back."""
    former = await lead(store)
    rows("DELETE FROM webhook_leaders RETURNING task")
    successor = await lead(store)
    assert successor.number == former.number
    with pytest.raises(LeadershipLost):
        await store.leadership.extend(former, 60.0)
    await store.leadership.release(former)
    assert await store.leadership.take("task", 60.0) is None, "a former leader must not release its successor"
    await store.leadership.extend(successor, 60.0)


async def test_fenced_transaction_of_a_former_leader_is_rolled_back(store: Store, rows: Rows) -> None:
    former = await lead(store, 0.0)
    await lead(store)

    async def work(run: Run) -> None:
        await run("audit", {"actor": "former leader", "action": "write", "detail": "{}"})
        await hold(run, former)

    with pytest.raises(LeadershipLost):
        await store.database.executor.transaction(work)
    assert rows("SELECT * FROM webhook_audit") == []


async def test_pruner_that_was_replaced_deletes_nothing(store: Store, database: str, rows: Rows) -> None:
    await claim(store, "evt_1")
    set_age(database, "evt_1", 40, "processed")
    receipts, _ = cutoffs(KEEP_30, await store.operations.now())
    async with open_store(database) as other, store.retention.start_pruning() as pruning:
        assert pruning is not None
        assert await prune(other, KEEP_30) is None, "only one process prunes at a time"
        rows("UPDATE webhook_leaders SET expires_at = taken_at RETURNING task")  # it stalls
        async with other.retention.start_pruning() as successor:
            assert successor is not None
            with pytest.raises(LeadershipLost):
                await pruning.prune_receipts(receipts, None, 100)
            assert stored_events(rows) == ["evt_1"]
    assert await prune(store, KEEP_30), "the successor has released the leadership"
    assert stored_events(rows) == []


async def test_leadership_that_was_taken_before_the_clock_was_set_back_is_taken_over(
    store: Store, database: str
) -> None:
    former = await lead(store)
    set_clock_back(database, 50)
    assert await store.leadership.take("task", 60.0) is None, "the term may be as long as that"
    set_clock_back(database, 3600)
    assert (await lead(store)).number == former.number + 1
    assert await store.leadership.take("task", 60.0) is None
