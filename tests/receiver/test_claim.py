"""Group commit on real stores: which claims share a commit, who gets which result, and what a cancellation changes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from oncehook.concurrency.clock import Clock
from oncehook.config.settings import Settings
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import IntakeFull, RowRefused, StoreUnavailable
from oncehook.receiver.claim import MAX_BATCH_EVENTS, Claimer
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import NO_STATE, Rows, make_claim
from tests.support.waiting import next_turn, pause_at_random

pytestmark = pytest.mark.anyio


COUNT = "SELECT count(*) FROM webhook_receipts"


class GatedStore:
    """A real store behind a gate: it records each batch, and holds it until the gate is open."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.parallel = store.claims.parallel
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Condition()
        self.bug: Exception | None = None

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        self.batches.append([claim.event_id for claim in claims])
        async with self.entered:
            self.entered.notify_all()
        await self.gate.wait()
        if self.bug is not None:
            bug, self.bug = self.bug, None
            raise bug
        return await self.store.claims.insert(claims)

    async def wait_for_batches(self, count: int) -> None:
        async with self.entered:
            await asyncio.wait_for(self.entered.wait_for(lambda: len(self.batches) >= count), 30)


class ShiftedClock(Clock):
    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@pytest.fixture
async def store(database: str) -> AsyncIterator[GatedStore]:
    """A real store whose commits a test can hold."""
    real = make_store(Settings(database=database))
    await real.open()
    gated = GatedStore(real)
    yield gated
    gated.gate.set()
    await real.close()


def make_claimer(store: Any, **changes: Any) -> Claimer:
    defaults: dict[str, Any] = {"observe": lambda seen: None, "limit": 10_000, "limit_bytes": 2**26, "timeout": 10.0}
    return Claimer(store, **defaults | changes)


async def start(claimer: Claimer, *groups: Sequence[Claim]) -> "list[asyncio.Task[list[Claimed]]]":
    """Start a claim for each group, and let all of them wait for their commit."""
    tasks = [asyncio.create_task(claimer.claim(group)) for group in groups]
    await next_turn()
    return tasks


async def fill_all_commits(claimer: Claimer, store: GatedStore) -> "list[asyncio.Task[list[Claimed]]]":
    """Start as many commits as the store runs in parallel, and hold them."""
    store.gate.clear()
    tasks = []
    for number in range(store.parallel):
        tasks += await start(claimer, [make_claim(f"held_{number}")])
        await store.wait_for_batches(number + 1)
    return tasks


async def test_an_idle_claimer_commits_immediately(store: GatedStore) -> None:
    store.gate.clear()
    (task,) = await start(make_claimer(store), [make_claim("evt_1")])
    await next_turn()  # no timer, no delay
    assert store.batches == [["evt_1"]]
    store.gate.set()
    assert (await task)[0].fresh


async def test_claims_that_arrive_during_a_commit_share_the_next_one(store: GatedStore, rows: Rows) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    tasks = await start(claimer, *([make_claim(f"evt_{n:03}")] for n in range(300)))
    store.gate.set()
    assert all(claimed.fresh for (claimed,) in await asyncio.gather(*held, *tasks))
    assert [len(batch) for batch in store.batches] == [1] * store.parallel + [300]
    assert rows(COUNT) == [(300 + store.parallel,)]


async def test_a_batch_contains_only_whole_deliveries_up_to_its_limit(store: GatedStore, rows: Rows) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    groups = [[make_claim(f"evt_{g}_{n}") for n in range(7)] for g in range(150)]
    huge = [make_claim(f"huge_{n}") for n in range(MAX_BATCH_EVENTS + 100)]
    tasks = await start(claimer, *groups, huge)
    store.gate.set()
    await asyncio.gather(*held, *tasks)
    assert all(len(batch) <= MAX_BATCH_EVENTS for batch in store.batches[:-1])
    where = {event_id: number for number, batch in enumerate(store.batches) for event_id in batch}
    for group in [*groups, huge]:
        assert len({where[claim.event_id] for claim in group}) == 1
    assert rows(COUNT) == [(150 * 7 + len(huge) + store.parallel,)]


async def test_receipts_of_a_batch_are_numbered_in_order_of_arrival(store: GatedStore) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    ids = [f"evt_{n}" for n in range(100)]
    random.Random(1).shuffle(ids)
    tasks = await start(claimer, *([make_claim(event_id)] for event_id in ids))
    store.gate.set()
    await asyncio.gather(*held)
    assert store.batches[-1] == ids
    numbers = [claimed.receipt for (claimed,) in await asyncio.gather(*tasks)]
    assert numbers == sorted(numbers)


async def test_sequential_claims_never_stall(store: GatedStore, rows: Rows) -> None:
    claimer = make_claimer(store)
    for number in range(50):
        (claimed,) = await asyncio.wait_for(claimer.claim([make_claim(f"evt_{number}")]), 30)
        assert claimed.fresh
    assert await claimer.claim([]) == []
    assert rows(COUNT) == [(50,)]


async def test_of_equal_event_ids_in_one_batch_only_the_first_is_fresh(store: GatedStore, rows: Rows) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    tasks = await start(
        claimer,
        [make_claim("evt_1", body=b"one")],
        [make_claim("evt_1", body=b"two")],
        [make_claim("evt_1", body=b"one")],
        [make_claim("evt_1", body=b"one"), make_claim("evt_2"), make_claim("evt_1", body=b"two")],
    )
    store.gate.set()
    await asyncio.gather(*held)
    results = [[(c.fresh, c.same_body) for c in result] for result in await asyncio.gather(*tasks)]
    assert results[:3] == [[(True, True)], [(False, False)], [(False, True)]]
    assert results[3] == [(False, True), (True, True), (False, False)]
    assert rows("SELECT body FROM webhook_payloads p JOIN webhook_receipts r ON r.id = receipt_id AND event_id='evt_1'")
    assert rows(COUNT) == [(2 + store.parallel,)]


async def test_equal_event_ids_of_other_sources_and_tenants_in_one_batch_are_other_events(
    store: GatedStore, rows: Rows
) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    owners = [{}, {"source": "github"}, {"tenant": "acme"}, {"tenant": "globex"}]
    tasks = await start(claimer, *([make_claim("evt_1", **owner)] for owner in owners))
    store.gate.set()
    results = [claimed for (claimed,) in await asyncio.gather(*tasks)]
    await asyncio.gather(*held)
    assert store.batches[-1] == ["evt_1"] * 4, "all four share a batch"
    assert [claimed.fresh for claimed in results] == [True] * 4
    assert len({claimed.receipt for claimed in results}) == 4
    stored = rows("SELECT source, tenant FROM webhook_receipts WHERE event_id = 'evt_1' ORDER BY id")
    assert stored == [("stripe", ""), ("github", ""), ("stripe", "acme"), ("stripe", "globex")]


@pytest.mark.parametrize("seed", range(8))
async def test_every_waiter_gets_the_results_of_its_own_claims(store: GatedStore, rows: Rows, seed: int) -> None:
    chance = random.Random(seed)
    claimer = make_claimer(store)
    pool = [f"evt_{n}" for n in range(60)]
    groups = [
        [make_claim(event_id, body=chance.choice([b"a", b"b"])) for event_id in chance.choices(pool, k=size)]
        for size in chance.choices([1, 1, 1, 2, 5, 20], k=80)
    ]
    tasks: list[asyncio.Task[list[Claimed]]] = []
    for group in groups:
        tasks += await start(claimer, group)
        for _ in range(chance.choice([0, 0, 0, 1, 3])):
            await next_turn()
    results = await asyncio.gather(*tasks)
    stored = {
        event_id: (receipt, bytes(body))
        for receipt, event_id, body in rows(
            "SELECT r.id, event_id, body FROM webhook_receipts r JOIN webhook_payloads ON receipt_id = r.id"
        )
    }
    fresh: list[str] = []
    for group, result in zip(groups, results, strict=True):
        assert len(result) == len(group)
        for claim, claimed in zip(group, result, strict=True):
            receipt, body = stored[claim.event_id]
            assert claimed.receipt == receipt
            assert claimed.same_body == (claim.body == body)
            fresh += [claim.event_id] * claimed.fresh
    assert sorted(fresh) == sorted(stored) == sorted({claim.event_id for group in groups for claim in group})


@pytest.mark.parametrize("poisoned", [{0}, {39}, {3, 4, 31}])
async def test_a_row_that_the_database_rejects_fails_only_its_own_delivery(
    store: GatedStore, rows: Rows, poisoned: set[int]
) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    groups = [[make_claim(f"evt_{n:02}", **{"status": NO_STATE} if n in poisoned else {})] for n in range(40)]
    tasks = await start(claimer, *groups)
    store.gate.set()
    await asyncio.gather(*held)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {n for n, result in enumerate(results) if isinstance(result, RowRefused)} == poisoned
    assert all(isinstance(result, RowRefused) or result[0].fresh for result in results)  # type: ignore[index]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE event_id LIKE 'evt%'") == [(40 - len(poisoned),)]


async def test_the_events_of_one_delivery_are_recorded_together_or_not_at_all(store: GatedStore, rows: Rows) -> None:
    claimer = make_claimer(store)
    group = [make_claim("evt_1"), make_claim("evt_2", status=NO_STATE), make_claim("evt_3")]
    with pytest.raises(RowRefused):
        await claimer.claim(group)
    assert rows(COUNT) == [(0,)]
    assert all(claimed.fresh for claimed in await claimer.claim([group[0], group[2]]))


async def test_a_cancelled_waiter_loses_only_its_result(store: GatedStore, rows: Rows) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    before, cancelled, after = await start(claimer, *([make_claim(f"evt_{n}")] for n in range(3)))
    cancelled.cancel()
    held[0].cancel()
    await asyncio.wait([cancelled, held[0]])
    store.gate.set()
    assert (await before)[0].fresh and (await after)[0].fresh
    await claimer.drain()
    assert cancelled.cancelled() and held[0].cancelled()
    assert rows(COUNT) == [(3 + store.parallel,)]


@pytest.mark.parametrize("seed", range(4))
async def test_cancelling_waiters_at_random_loses_no_claim(store: GatedStore, rows: Rows, seed: int) -> None:
    chance = random.Random(seed)
    claimer = make_claimer(store)
    begun: list[str] = []
    answered: dict[str, Claimed] = {}

    async def claim(event_id: str) -> None:
        begun.append(event_id)
        (answered[event_id],) = await claimer.claim([make_claim(event_id)])

    for round_number in range(25):
        tasks = []
        for number in range(12):
            tasks.append(asyncio.create_task(claim(f"{round_number}_{number}")))
            for _ in range(chance.randrange(4)):
                await next_turn()
            if chance.random() < 0.5:
                chance.choice(tasks).cancel()
        for task in chance.sample(tasks, 3):
            await pause_at_random(chance, 0.002)
            task.cancel()
        await asyncio.wait_for(asyncio.wait(tasks), 10)
    await claimer.drain()
    stored: dict[str, int] = dict(rows("SELECT event_id, id FROM webhook_receipts"))
    assert sorted(stored) == sorted(begun)
    assert len(answered) < len(begun)
    assert all(claimed.fresh and claimed.receipt == stored[id] for id, claimed in answered.items())


@pytest.mark.parametrize("limit", [{"limit": 10}, {"limit_bytes": 1000}], ids=str)
async def test_a_full_intake_rejects_immediately_and_accepts_again_when_there_is_room(
    store: GatedStore, rows: Rows, limit: dict[str, int]
) -> None:
    claimer = make_claimer(store, **limit)
    held = await fill_all_commits(claimer, store)
    inside = await start(claimer, *([make_claim(f"evt_{n}", body=b"x" * 120)] for n in range(7)))
    with pytest.raises(IntakeFull) as raised:
        await asyncio.wait_for(claimer.claim([make_claim(f"more_{n}", body=b"x" * 120) for n in range(3)]), 30)
    assert raised.value.retry_after > 0
    store.gate.set()
    await asyncio.gather(*held, *inside)
    larger_than_the_intake = [make_claim(f"large_{n}", body=b"x" * 120) for n in range(20)]
    assert all(claimed.fresh for claimed in await claimer.claim(larger_than_the_intake))
    assert rows(COUNT) == [(27 + store.parallel,)]
    held = await fill_all_commits(claimer, store)
    (again,) = await start(claimer, [make_claim("again", body=b"x" * 120)])
    store.gate.set()
    assert (await again)[0].fresh, "the claims before must not fill the intake any more"
    await asyncio.gather(*held)


async def test_a_claim_that_waited_too_long_is_rejected_and_not_recorded(store: GatedStore, rows: Rows) -> None:
    clock = ShiftedClock()
    claimer = make_claimer(store, clock=clock)
    held = await fill_all_commits(claimer, store)
    late = await start(claimer, [make_claim("late_1")], [make_claim("late_2")])
    clock.ahead = 10.5
    (timely,) = await start(claimer, [make_claim("timely")])
    store.gate.set()
    for task in late:
        with pytest.raises(StoreUnavailable, match="too long"):
            await task
    assert (await timely)[0].fresh
    await asyncio.gather(*held)
    assert rows("SELECT event_id FROM webhook_receipts WHERE event_id NOT LIKE 'held%'") == [("timely",)]


@pytest.mark.parametrize("bug", [StoreUnavailable("gone"), ZeroDivisionError("a bug")], ids=repr)
async def test_after_a_store_failure_the_next_claim_succeeds(store: GatedStore, bug: Exception) -> None:
    claimer = make_claimer(store, limit=2)
    store.bug = bug
    with pytest.raises(StoreUnavailable):
        await claimer.claim([make_claim("evt_1"), make_claim("evt_2")])
    assert all(claimed.fresh for claimed in await claimer.claim([make_claim("evt_1"), make_claim("evt_2")]))


async def test_an_observer_that_fails_changes_no_result(store: GatedStore, rows: Rows) -> None:
    def observe(seen: object) -> None:
        raise OSError("the disk with the log is full")

    claimer = make_claimer(store, observe=observe)
    results = await asyncio.wait_for(asyncio.gather(*(claimer.claim([make_claim(f"evt_{n}")]) for n in range(30))), 30)
    assert all(claimed.fresh for (claimed,) in results)
    assert rows(COUNT) == [(30,)]


async def test_drain_waits_for_every_claim(store: GatedStore, rows: Rows) -> None:
    claimer = make_claimer(store)
    held = await fill_all_commits(claimer, store)
    tasks = await start(claimer, *([make_claim(f"evt_{n}")] for n in range(20)))
    draining = asyncio.create_task(claimer.drain())
    await next_turn()
    assert not draining.done()
    store.gate.set()
    await asyncio.wait_for(draining, 30)
    assert all(task.done() for task in [*held, *tasks])
    assert rows(COUNT) == [(20 + store.parallel,)]


async def test_two_inboxes_that_claim_overlapping_batches_do_not_deadlock(
    database: str, rows: Rows, store: GatedStore, open_second_store: Callable[[], Any]
) -> None:
    chance = random.Random(7)
    claimers = [make_claimer(store.store.claims), make_claimer((await open_second_store()).claims)]
    fresh = 0
    for round_number in range(15):
        ids = [f"{round_number}_{n}" for n in range(60)]
        groups = []
        for claimer in claimers:
            for _ in range(3):
                chosen = chance.sample(ids, 40)
                groups.append(claimer.claim([make_claim(event_id) for event_id in chosen]))
        for result in await asyncio.wait_for(asyncio.gather(*groups), 20):
            fresh += sum(claimed.fresh for claimed in result)
    assert rows(COUNT) == [(fresh,)]
    if database.startswith("postgresql"):
        assert rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


@pytest.fixture
async def open_second_store(database: str) -> AsyncIterator[Callable[[], Any]]:
    """Opens another store on the same database, as another process would."""
    opened: list[Store] = []

    async def make() -> Store:
        opened.append(make_store(Settings(database=database)))
        await opened[-1].open()
        return opened[-1]

    yield make
    for store in opened:
        await store.close()
