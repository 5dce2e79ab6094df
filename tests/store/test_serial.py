"""Serial keys: one event of a key at a time, in order of arrival, keys side by side; on both databases."""

import asyncio
import random
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from oncehook import ConfigurationError, Event, Fail, Inbox, Retry
from oncehook.config.configuration import read_source
from oncehook.config.settings import Settings
from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.lease import Leased, Settled
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.operations.forget import forget
from oncehook.operations.replay import replay
from oncehook.providers.source import Source
from oncehook.store import make_store, queries
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from tests.support.events import make_claim, stripe_body
from tests.support.serial_order import Note, check_order, most_at_once
from tests.support.servers import Postgres, ask
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio

QUICK = Retry(attempts=3, first=0.01, most=0.02)
DONE = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"


def claims_of(key: str, count: int, start: int = 0, **changes: Any) -> list[Claim]:
    """Events of one object, numbered in order of arrival."""
    numbers = range(start, start + count)
    return [make_claim(f"{key}-{n}", object_id=key, serial_key=key, **changes) for n in numbers]


def interleaved(*groups: Sequence[Claim]) -> list[Claim]:
    mixed = [(place, number, claim) for number, group in enumerate(groups) for place, claim in enumerate(group)]
    return [claim for _, _, claim in sorted(mixed, key=lambda one: one[:2])]


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False, lease="5s", poll="200ms")
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
    async with inbox.lifespan():
        yield inbox


def noting(notes: list[Note], longest: float = 0.01) -> Callable[[Event], Any]:
    """A handler that takes its time and notes when it begins and ends."""

    async def note(event: Event) -> None:
        number = int(event.id.rpartition("-")[2])
        notes.append((str(event.object_id), number, "begin"))
        await asyncio.sleep(random.random() * longest)
        notes.append((str(event.object_id), number, "end"))

    return note


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=database))
    await store.open()
    yield store
    await store.close()


async def settle(store: Store, leased: Sequence[Leased], status: State = State.PROCESSED, **more: Any) -> None:
    done = [Settled(one.receipt, one.lease, status, status.value, **more) for one in leased]
    assert await store.leases.settle(done) == {one.receipt for one in leased}


async def lease(store: Store, limit: int = 10, **more: Any) -> list[Leased]:
    return await store.leases.take(limit, 30, "test", **more)


def ids(leased: Sequence[Leased]) -> list[str]:
    return [one.event_id for one in leased]


# -- workers --------------------------------------------------------------------------------------------------------


async def test_a_key_is_handled_in_order_one_at_a_time_and_keys_side_by_side(inbox: Inbox, database: str) -> None:
    notes: list[Note] = []
    inbox.on("stripe", "*")(noting(notes))
    keys = {f"in_{n:02d}": 12 for n in range(20)}
    await inbox._runtime.store.claims.insert(interleaved(*(claims_of(key, count) for key, count in keys.items())))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 240), 60)
    assert {key: len(done) for key, done in check_order(notes).items()} == keys
    assert most_at_once(notes) == 16


async def test_events_that_arrive_while_their_key_is_at_work_follow_in_order(inbox: Inbox, database: str) -> None:
    notes: list[Note] = []
    inbox.on("stripe", "*")(noting(notes))
    inbox._runtime.start_worker()
    for start in range(0, 40, 2):
        claims = interleaved(claims_of("in_1", 2, start), claims_of("in_2", 2, start))
        await inbox._runtime.reception.claimer.claim(claims)
    await eventually(receipts_are(database, "processed", 80), 60)
    assert check_order(notes) == {"in_1": list(range(40)), "in_2": list(range(40))}


async def test_two_inboxes_on_one_postgres_never_overlap_on_a_key(postgres: Postgres) -> None:
    database = postgres.database(migrated=True)
    notes: list[Note] = []
    inboxes = [Inbox(database, worker=False, poll="50ms") for _ in range(3)]
    for inbox in inboxes:
        inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
        inbox.on("stripe", "*")(noting(notes, 0.003))
    async with inboxes[0].lifespan(), inboxes[1].lifespan(), inboxes[2].lifespan():
        for inbox in inboxes:
            inbox._runtime.start_worker()
        for start in range(0, 60, 6):
            door = random.choice(inboxes)
            await door._runtime.reception.claimer.claim(
                interleaved(*(claims_of(f"in_{k}", 6, start) for k in range(8)))
            )
        await eventually(receipts_are(database, "processed", 480), 60)
    assert check_order(notes) == {f"in_{k}": list(range(60)) for k in range(8)}


async def test_a_batch_holds_one_event_of_a_key_at_most(inbox: Inbox, database: str) -> None:
    batches: list[list[str]] = []

    @inbox.on("stripe", "*", batch=50)
    async def many(events: list[Event]) -> None:
        batches.append([str(event.object_id) for event in events])

    await inbox._runtime.store.claims.insert(interleaved(*(claims_of(f"in_{n}", 5) for n in range(12))))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 60))
    assert max(map(len, batches)) > 1
    assert all(len(set(batch)) == len(batch) for batch in batches)


async def test_a_head_that_is_tried_again_keeps_its_key_until_it_is_done(inbox: Inbox, database: str) -> None:
    seen: list[tuple[str, int]] = []

    @inbox.on("stripe", "*", retry=QUICK)
    async def flaky(event: Event) -> None:
        seen.append((event.id, event.attempt))
        if event.id == "in_1-0" and event.attempt < 3:
            raise ConnectionError("not yet")

    await inbox._runtime.store.claims.insert(claims_of("in_1", 3))
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 3))
    assert seen == [("in_1-0", 1), ("in_1-0", 2), ("in_1-0", 3), ("in_1-1", 1), ("in_1-2", 1)]


@pytest.mark.parametrize("policy", ["block", "skip"])
async def test_a_dead_letter_blocks_its_key_or_is_passed_as_the_source_says(
    make_inbox: Callable[..., Inbox], database: str, policy: str
) -> None:
    mended = False
    seen: list[str] = []
    inbox = make_inbox(worker=False, poll="100ms")
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id", serial_failed=policy)

    @inbox.on("stripe", "*")
    async def broken(event: Event) -> None:
        if event.id == "in_1-1" and not mended:
            raise Fail("no")
        seen.append(event.id)

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert(interleaved(claims_of("in_1", 4), claims_of("in_2", 1)))
        inbox._runtime.start_worker()
        await eventually(receipts_are(database, "failed", 1))
        await eventually(receipts_are(database, "processed", 2 if policy == "block" else 4))
        if policy == "block":
            for _ in range(3):  # the worker looks again, and goes on leaving them
                assert await lease(inbox._runtime.store) == []
            assert sorted(seen) == ["in_1-0", "in_2-0"]
        mended = True
        assert (await replay(inbox._runtime.store, Selection(Filter(status="failed")))).count == 1
        await eventually(receipts_are(database, "processed", 5))
    of_key = [event_id for event_id in seen if event_id.startswith("in_1")]
    expected = ["in_1-0", "in_1-1", "in_1-2", "in_1-3"]
    assert of_key == (expected if policy == "block" else ["in_1-0", "in_1-2", "in_1-3", "in_1-1"])


# -- leases ---------------------------------------------------------------------------------------------------------


async def test_only_the_first_of_a_key_is_leased_and_the_next_when_it_is_settled(store: Store) -> None:
    await store.claims.insert(interleaved(claims_of("a", 3), claims_of("b", 2)))
    first = await lease(store)
    assert ids(first) == ["a-0", "b-0"]
    assert [one.serial_key for one in first] == ["a", "b"]
    assert await lease(store) == []
    await settle(store, first[:1])
    second = await lease(store)
    assert ids(second) == ["a-1"]
    await settle(store, second, State.RETRYING, after=3600.0)
    assert await lease(store) == []
    await settle(store, first[1:])
    assert ids(await lease(store)) == ["b-1"]


async def test_a_key_of_another_source_is_another_key(store: Store) -> None:
    await store.claims.insert([*claims_of("a", 1), *claims_of("a", 1, source="github")])
    assert sorted(one.source for one in await lease(store)) == ["github", "stripe"]


async def test_a_key_that_was_given_back_or_whose_worker_died_goes_on_with_the_same_event(store: Store) -> None:
    await store.claims.insert(claims_of("a", 2))
    (held,) = await lease(store)
    assert await store.leases.release([held.held]) == 1
    (again,) = await lease(store)
    assert again.event_id == "a-0"
    await settle(store, [again], State.RETRYING, after=0.0, crashed=True)
    assert await lease(store) == []
    assert ids(await lease(store, 1, rescued=True)) == ["a-0"]
    assert await lease(store, 1, rescued=True) == []


async def test_a_replay_goes_before_what_waits_and_after_what_is_at_work(store: Store) -> None:
    await store.claims.insert(claims_of("a", 4))
    for _ in range(2):
        await settle(store, await lease(store))
    at_work = await lease(store)
    assert ids(at_work) == ["a-2"]
    assert (await replay(store, Selection(Filter(status="processed")))).count == 2
    assert await lease(store) == []
    order = []
    for _ in range(3):
        await settle(store, at_work)
        at_work = await lease(store)
        order += ids(at_work)
    assert order == ["a-0", "a-1", "a-3"]


async def test_a_dead_letter_whose_payload_was_erased_blocks_nothing(store: Store) -> None:
    await store.claims.insert(claims_of("a", 2))
    head = await lease(store)
    await settle(store, head, State.FAILED)
    assert await lease(store) == []
    assert await forget(store, [head[0].receipt], actor="test", object_id="a") == 1
    assert ids(await lease(store)) == ["a-1"]


async def test_the_database_itself_refuses_two_of_a_key_at_once(store: Store, database: str) -> None:
    await store.claims.insert([*claims_of("a", 2), make_claim("free_1"), make_claim("free_2")])
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
        ask(database, "UPDATE webhook_receipts SET status = 'processing' WHERE serial_key = 'a'")
    ask(database, "UPDATE webhook_receipts SET status = 'processing' WHERE serial_key IS NULL")


async def test_a_hot_key_keeps_no_cold_one_from_its_turn_and_has_its_own(store: Store) -> None:
    for start in range(0, 2000, 500):
        await store.claims.insert(claims_of("in_0500", 500, start))
    for start in range(0, 1000, 500):
        await store.claims.insert([claims_of(f"in_{n:04d}", 1, 9000)[0] for n in range(start, start + 500)])
    looks, turns = 0, Counter[str]()
    while sum(turns.values()) - turns["in_0500"] < 999:
        leased = await lease(store, 32)
        assert len({one.serial_key for one in leased}) == len(leased)
        turns.update(one.serial_key for one in leased)
        await settle(store, leased)
        looks += 1
        assert looks < 60, "somebody is starving"
    assert turns["in_0500"] >= 2
    assert set(turns.values()) - {turns["in_0500"]} == {1}


async def test_many_blocked_keys_keep_no_other_from_its_turn(store: Store) -> None:
    for start in range(0, 1500, 500):
        await store.claims.insert([claims_of(f"in_{n:04d}", 1)[0] for n in range(start, start + 500)])
    while leased := await lease(store, 500):
        await settle(store, leased, State.RETRYING, after=3600.0)
    await store.claims.insert([*claims_of("in_9999", 1), *claims_of("in_0000a", 1)])
    found = [*await lease(store, 5), *await lease(store, 5), *await lease(store, 5)]
    assert sorted(ids(found)) == ["in_0000a-0", "in_9999-0"]


async def test_events_with_a_key_and_without_share_even_a_room_of_one(store: Store) -> None:
    free = [make_claim(f"free_{n}") for n in range(20)]
    await store.claims.insert([*free, *claims_of("a", 20)])
    kinds = Counter[bool]()
    for _ in range(20):
        leased = await lease(store, 1)
        kinds[leased[0].serial_key is None] += 1
        await settle(store, leased)
    assert kinds == {True: 10, False: 10}


async def test_order_is_that_of_arrival_whichever_process_drew_its_ids_first(postgres: Postgres) -> None:
    stores = [make_store(Settings(database=postgres.database(migrated=True))) for _ in range(1)]
    stores.append(make_store(stores[0].settings))  # type: ignore[attr-defined]
    for store in stores:
        await store.open()
        await store.claims.insert([make_claim(f"first of {id(store)}", status=State.IGNORED)])
    early, late = stores  # each has drawn a block of ids; the first one's are smaller
    (second_process,) = await late.claims.insert(claims_of("a", 1, 0))
    (first_process,) = await early.claims.insert(claims_of("a", 1, 1))
    assert first_process.receipt < second_process.receipt
    assert ids(await lease(early)) == ["a-0"]
    for store in stores:
        await store.close()


# -- the door -------------------------------------------------------------------------------------------------------


def source(**settings: Any) -> Source:
    given = read_source("stripe", {"secrets": ["whsec_test"], **settings})
    return Source("stripe", given, max_body=2**20)


def key_of(made: Source, body: bytes) -> str | None:
    delivery = Delivery(body)
    (claim,) = made.read(delivery, made.parse(delivery))
    return claim.serial_key


@pytest.mark.parametrize(
    ("serial_by", "key"),
    [
        (None, None),
        ("object_id", "in_1"),
        ("data.object.id", "in_1"),
        ("{type}|{data.object.id}", "invoice.paid|in_1"),
        (["data.object.customer", "data.object.id"], "in_1"),
        ("literal:all", "all"),
        ("data.object.customer", None),
        ("data.object", None),
    ],
)
def test_the_key_is_what_the_source_names_and_without_it_an_event_has_none(serial_by: Any, key: str | None) -> None:
    given = {} if serial_by is None else {"serial_by": serial_by}
    assert key_of(source(**given), stripe_body()) == key


def test_a_key_that_is_too_long_is_kept_by_its_hash() -> None:
    body = stripe_body(data={"object": {"id": "x" * 300}})
    key = key_of(source(serial_by="object_id"), body)
    assert key is not None and key.startswith("sha256:") and len(key) < 255


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"serial_by": "object_id", "mode": "inline"}, 'sources.stripe.serial_by needs mode = "queued"'),
        ({"serial_by": "data..id"}, "sources.stripe.serial_by: 'data..id' has an empty step"),
        ({"serial_by": "object_id", "serial_failed": "wait"}, "expected one of block, skip"),
        ({"serial_by": 7}, "sources.stripe.serial_by is 7"),
    ],
)
def test_a_serial_by_that_cannot_be_followed_is_an_error_at_start(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told.replace("(", "\\(")):
        source(**settings)


def test_object_id_needs_a_provider_that_says_where_it_is() -> None:
    signature = {"algorithm": "hmac-sha256", "header": "X-Sig"}
    own = {"acme": {"title": "Acme", "signatures": [signature], "event": {"id": "id", "type": "type"}}}
    given = read_source("acme", {"secrets": ["a-long-random-text"], "serial_by": "object_id"})
    with pytest.raises(ConfigurationError, match="the definition of acme has no `object`"):
        Source("acme", given, own_providers=own, max_body=2**20)


async def test_the_events_of_one_delivery_are_in_its_order(inbox: Inbox, database: str) -> None:
    names = [f"evt_{n:02d}-{n}" for n in range(20)]
    random.Random(3).shuffle(names)
    await inbox._runtime.reception.claimer.claim(
        [make_claim(name, object_id="in_1", serial_key="in_1") for name in names]
    )
    seen: list[str] = []

    @inbox.on("stripe", "*")
    async def see(event: Event) -> None:
        seen.append(event.id)

    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 20))
    assert seen == names


async def test_an_event_without_a_key_waits_for_nobody(inbox: Inbox, database: str) -> None:
    at_once = asyncio.Barrier(3)

    @inbox.on("stripe", "*")
    async def meet(event: Event) -> None:
        await asyncio.wait_for(at_once.wait(), 20)

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}", object_id=None) for n in range(3)])
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 3))


@asynccontextmanager
async def opened(*stores: Store) -> AsyncIterator[None]:
    for store in stores:
        await store.open()
    yield
    for store in stores:
        await store.close()


async def test_workers_that_see_another_first_cannot_both_have_it(postgres: Postgres) -> None:
    """An earlier event is replayed again and again while many lease: at most one of a key is ever at work."""
    database = postgres.database(migrated=True)
    stores = [make_store(Settings(database=database)) for _ in range(6)]
    async with opened(*stores):
        await stores[0].claims.insert(claims_of("a", 40))
        held: set[int] = set()

        async def work(store: Store) -> None:
            while ask(database, DONE)[0][0] < 40:
                for one in await lease(store, 4):
                    assert not held
                    held.add(one.receipt)
                    await asyncio.sleep(0)
                    held.remove(one.receipt)
                    await settle(store, [one])

        async def replay_now_and_then() -> None:
            for _ in range(30):
                await replay(stores[0], Selection(Filter(status="processed"), receipts=(random.randrange(1, 40),)))
                await asyncio.sleep(0.005)

        async with asyncio.timeout(60):
            await asyncio.gather(replay_now_and_then(), *map(work, stores))


# -- plans ----------------------------------------------------------------------------------------------------------

GIVEN = {
    "source": "", "key": "", "most": 80, "keys": '[{"source": "stripe", "key": "in_1"}]', "skip_failed": [],
    "limit": 32, "rescued": False, "worker": "w", "seconds": 30.0, "floor": "-infinity",
    "handled": ["stripe %"], "projected": [],
}  # fmt: skip


@pytest.mark.parametrize("analysed", [False, True])
async def test_a_look_at_a_key_is_a_look_into_its_indexes(postgres: Postgres, analysed: bool) -> None:
    store = make_store(Settings(database=postgres.database(migrated=True)))
    async with opened(store):
        await store.claims.insert(claims_of("in_1", 500))
        await store.claims.insert([claims_of(f"dead_{n}", 1, status=State.FAILED)[0] for n in range(500)])
        await store.claims.insert([make_claim(f"free_{n}") for n in range(500)])
        address = store.settings.database  # type: ignore[attr-defined]
        if analysed:
            ask(address, "ANALYZE webhook_receipts")
        connection = await asyncpg.connect(address)
        plans = {}
        for name in ("serial_keys", "lease_serial", "lease"):
            text, names = queries.number_parameters(store.sql[name])  # type: ignore[attr-defined]
            rows = await connection.fetch(f"EXPLAIN {text}", *(GIVEN[name] for name in names))
            plans[name] = "\n".join(row[0] for row in rows)
        await connection.close()
    for name in ("serial_keys", "lease_serial"):
        assert "Seq Scan on webhook_receipts" not in plans[name], plans[name]
    assert "webhook_receipts_serial_waiting" in plans["serial_keys"]
    for index in ("serial_waiting", "serial_processing", "serial_failed"):
        found = re.search(
            rf"Index (Only )?Scan using webhook_receipts_{index} .*\n +Index Cond: (.*)", plans["lease_serial"]
        )
        assert (
            found is not None and re.search(r"\bsource\b\S* = k.source", found[2]) and "serial_key = k.key" in found[2]
        )
    assert "webhook_receipts_due" in plans["lease"] and "webhook_receipts_due" not in plans["lease_serial"]
