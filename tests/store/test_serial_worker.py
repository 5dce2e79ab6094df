"""Workers process the events of a serial key in order, one at a time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from oncehook import Event, Fail, Inbox
from oncehook.model.lease import Leased
from oncehook.model.receipt import Filter
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.serial_order import Note, check_order, most_at_once
from tests.support.servers import Postgres
from tests.support.stores import claims_with_key, interleave
from tests.support.waiting import eventually, next_turn
from tests.support.work import QUICK, receipts_are

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False, lease="5s", poll="200ms")
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
    async with inbox.lifespan():
        yield inbox


def recording_handler(notes: list[Note], concurrency: int = 1) -> Callable[[Event], Any]:
    """A handler that records when it begins and ends. The first handlers wait until `concurrency` of them run."""
    is_full = asyncio.Event()

    async def record(event: Event) -> None:
        number = int(event.id.rpartition("-")[2])
        notes.append((str(event.object_id), number, "begin"))
        if not is_full.is_set() and most_at_once(notes) >= concurrency:
            is_full.set()
        await asyncio.wait_for(is_full.wait(), 20)
        for _ in range(random.randrange(5)):
            await next_turn()
        notes.append((str(event.object_id), number, "end"))

    return record


async def test_events_of_a_key_run_in_order_and_keys_run_concurrently(inbox: Inbox, database: str) -> None:
    notes: list[Note] = []
    inbox.on("stripe", "*")(recording_handler(notes, 16))
    keys = {f"in_{n:02d}": 12 for n in range(20)}
    await inbox._runtime.store.claims.insert(interleave(*(claims_with_key(key, count) for key, count in keys.items())))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 240), within=60)
    assert {key: len(done) for key, done in check_order(notes).items()} == keys
    assert most_at_once(notes) == 16


async def test_events_that_arrive_while_their_key_is_processing_run_in_order(inbox: Inbox, database: str) -> None:
    notes: list[Note] = []
    inbox.on("stripe", "*")(recording_handler(notes))
    inbox._runtime.start_worker()
    for start in range(0, 40, 2):
        claims = interleave(claims_with_key("in_1", 2, start), claims_with_key("in_2", 2, start))
        await inbox._runtime.reception.claimer.claim(claims)
    await eventually(receipts_are(database, "processed", 80), within=60)
    assert check_order(notes) == {"in_1": list(range(40)), "in_2": list(range(40))}


async def test_workers_of_three_processes_never_run_one_key_concurrently(postgres: Postgres) -> None:
    database = postgres.database(migrated=True)
    notes: list[Note] = []
    inboxes = [Inbox(database, worker=False, poll="50ms") for _ in range(3)]
    for inbox in inboxes:
        inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
        inbox.on("stripe", "*")(recording_handler(notes))
    async with inboxes[0].lifespan(), inboxes[1].lifespan(), inboxes[2].lifespan():
        for inbox in inboxes:
            inbox._runtime.start_worker()
        for start in range(0, 60, 6):
            receiver = random.choice(inboxes)
            await receiver._runtime.reception.claimer.claim(
                interleave(*(claims_with_key(f"in_{k}", 6, start) for k in range(8)))
            )
        await eventually(receipts_are(database, "processed", 480), within=60)
    assert check_order(notes) == {f"in_{k}": list(range(60)) for k in range(8)}


async def test_batch_contains_at_most_one_event_of_a_key(inbox: Inbox, database: str) -> None:
    batches: list[list[str]] = []

    @inbox.on("stripe", "*", batch=50)
    async def many(events: list[Event]) -> None:
        batches.append([str(event.object_id) for event in events])

    await inbox._runtime.store.claims.insert(interleave(*(claims_with_key(f"in_{n}", 5) for n in range(12))))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 60))
    assert max(map(len, batches)) > 1
    assert all(len(set(batch)) == len(batch) for batch in batches)


async def test_retried_event_blocks_its_key_until_it_is_processed(inbox: Inbox, database: str) -> None:
    seen: list[tuple[str, int]] = []

    @inbox.on("stripe", "*", retry=QUICK)
    async def flaky(event: Event) -> None:
        seen.append((event.id, event.attempt))
        if event.id == "in_1-0" and event.attempt < 3:
            raise ConnectionError("not yet")

    await inbox._runtime.store.claims.insert(claims_with_key("in_1", 3))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 3))
    assert seen == [("in_1-0", 1), ("in_1-0", 2), ("in_1-0", 3), ("in_1-1", 1), ("in_1-2", 1)]


async def lease(store: Store, limit: int = 10, **more: Any) -> list[Leased]:
    return await store.leases.take(limit, 30, "test", **more)


@pytest.mark.parametrize("policy", ["block", "skip"])
async def test_dead_letter_blocks_or_skips_its_key_as_the_source_sets(
    make_inbox: Callable[..., Inbox], database: str, policy: Literal["block", "skip"]
) -> None:
    is_fixed = False
    seen: list[str] = []
    inbox = make_inbox(worker=False, poll="100ms")
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id", serial_failed=policy)

    @inbox.on("stripe", "*")
    async def broken(event: Event) -> None:
        if event.id == "in_1-1" and not is_fixed:
            raise Fail("no")
        seen.append(event.id)

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert(interleave(claims_with_key("in_1", 4), claims_with_key("in_2", 1)))
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
        await eventually(receipts_are(database, "processed", 2 if policy == "block" else 4))
        if policy == "block":
            for _ in range(3):
                assert await lease(inbox._runtime.store) == [], "the dead letter must block its key"
            assert sorted(seen) == ["in_1-0", "in_2-0"]
        is_fixed = True
        assert (await replay(inbox._runtime.store, Selection(Filter(status="failed")))).count == 1
        await eventually(receipts_are(database, "processed", 5))
    of_key = [event_id for event_id in seen if event_id.startswith("in_1")]
    expected = ["in_1-0", "in_1-1", "in_1-2", "in_1-3"]
    assert of_key == (expected if policy == "block" else ["in_1-0", "in_1-2", "in_1-3", "in_1-1"])


async def test_events_of_one_delivery_run_in_its_order(inbox: Inbox, database: str) -> None:
    names = [f"evt_{n:02d}-{n}" for n in range(20)]
    random.Random(3).shuffle(names)
    await inbox._runtime.reception.claimer.claim(
        [make_claim(name, object_id="in_1", serial_key="in_1") for name in names]
    )
    seen: list[str] = []

    @inbox.on("stripe", "*")
    async def record_id(event: Event) -> None:
        seen.append(event.id)

    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 20))
    assert seen == names


async def test_events_without_a_key_run_concurrently(inbox: Inbox, database: str) -> None:
    at_once = asyncio.Barrier(3)

    @inbox.on("stripe", "*")
    async def meet(event: Event) -> None:
        await asyncio.wait_for(at_once.wait(), 20)

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}", object_id=None) for n in range(3)])
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 3))
