"""Which receipts of serial keys a store leases."""

import sqlite3
from collections import Counter
from typing import Any

import psycopg
import pytest

from oncehook.model.lease import Leased
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.operations.forget import forget
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.servers import run_sql
from tests.support.stores import claims_with_key, event_ids, interleave, processed, settle

pytestmark = pytest.mark.anyio


async def lease(store: Store, limit: int = 10, **more: Any) -> list[Leased]:
    return await store.leases.take(limit, 30, "test", **more)


async def test_next_receipt_of_a_key_is_leased_after_the_first_is_settled(store: Store) -> None:
    await store.claims.insert(interleave(claims_with_key("a", 3), claims_with_key("b", 2)))
    first = await lease(store)
    assert event_ids(first) == ["a-0", "b-0"]
    assert [leased.serial_key for leased in first] == ["a", "b"]
    assert await lease(store) == []
    await settle(store, first[:1])
    second = await lease(store)
    assert event_ids(second) == ["a-1"]
    await settle(store, second, State.RETRYING, after=3600.0)
    assert await lease(store) == []
    await settle(store, first[1:])
    assert event_ids(await lease(store)) == ["b-1"]


async def test_lease_of_a_key_has_its_own_fence_and_expires(store: Store, rows: Rows) -> None:
    await store.claims.insert(claims_with_key("a", 1))
    (first,) = await lease(store)
    assert await store.leases.release([first.lease_key]) == 1
    (again,) = await lease(store)
    assert await store.leases.settle([processed(first)]) == set(), "two leases of one event need different fences"
    assert rows("SELECT worker FROM webhook_receipts") == [("test",)]
    await store.schema.move_times_back(20)
    assert await store.leases.expired(10, 0) == []
    await store.schema.move_times_back(20)
    assert [row.receipt for row in await store.leases.expired(10, 0)] == [again.receipt]


async def test_leased_event_has_its_own_payload(store: Store, rows: Rows) -> None:
    with_keys = [make_claim(f"{key}-0", serial_key=key, headers=f'{{"of":"{key}-0"}}') for key in ("a", "b")]
    free = [make_claim(name, headers=f'{{"of":"{name}"}}') for name in ("free_1", "free_2")]
    await store.claims.insert([*with_keys, *free])
    rows("UPDATE webhook_payloads SET object = 'object of ' || receipt_id")
    leased = await lease(store)
    assert sorted(event_ids(leased)) == ["a-0", "b-0", "free_1", "free_2"]
    for event in leased:
        assert event.body == b'{"id": "%s"}' % event.event_id.encode()
        assert event.headers == f'{{"of":"{event.event_id}"}}'
        assert event.object == f"object of {event.receipt}"


async def test_same_key_in_another_source_is_another_key(store: Store) -> None:
    await store.claims.insert([*claims_with_key("a", 1), *claims_with_key("a", 1, source="github")])
    assert sorted(leased.source for leased in await lease(store)) == ["github", "stripe"]


async def test_running_event_blocks_only_its_own_source(store: Store) -> None:
    await store.claims.insert(claims_with_key("a", 1, source="github"))
    assert event_ids(await lease(store)) == ["a-0"]
    await store.claims.insert(claims_with_key("a", 2))
    (other,) = await lease(store)
    assert (other.source, other.event_id) == ("stripe", "a-0")


async def test_released_or_crashed_receipt_stays_the_first_of_its_key(store: Store) -> None:
    await store.claims.insert(claims_with_key("a", 2))
    (held,) = await lease(store)
    assert await store.leases.release([held.lease_key]) == 1
    (again,) = await lease(store)
    assert again.event_id == "a-0"
    await settle(store, [again], State.RETRYING, after=0.0, crashed=True)
    assert await lease(store) == []
    assert event_ids(await lease(store, 1, rescued=True)) == ["a-0"]
    assert await lease(store, 1, rescued=True) == []


async def test_retry_that_is_not_due_blocks_its_key(store: Store) -> None:
    await store.claims.insert([*claims_with_key("a", 3), *claims_with_key("b", 1)])
    waiting, other = await lease(store)
    assert event_ids([waiting, other]) == ["a-0", "b-0"]
    await settle(store, [waiting], State.RETRYING, after=3600.0)
    await settle(store, [other])
    assert await lease(store) == [], "no later event of the key may overtake the retry"
    assert await store.operations.retry_now([waiting.receipt], "ops", {}) == [waiting.receipt]
    assert event_ids(await lease(store)) == ["a-0"]


async def test_replayed_receipt_is_leased_before_waiting_receipts_of_its_key(store: Store) -> None:
    await store.claims.insert(claims_with_key("a", 4))
    for _ in range(2):
        await settle(store, await lease(store))
    at_work = await lease(store)
    assert event_ids(at_work) == ["a-2"]
    assert (await replay(store, Selection(Filter(status="processed")))).count == 2
    assert await lease(store) == []
    order = []
    for _ in range(3):
        await settle(store, at_work)
        at_work = await lease(store)
        order += event_ids(at_work)
    assert order == ["a-0", "a-1", "a-3"]


async def test_dead_letter_without_a_payload_does_not_block_its_key(store: Store) -> None:
    await store.claims.insert(claims_with_key("a", 2))
    head = await lease(store)
    await settle(store, head, State.FAILED)
    assert await lease(store) == []
    assert await forget(store, [head[0].receipt], actor="test", object_id="a") == 1
    assert event_ids(await lease(store)) == ["a-1"]


async def test_dead_letter_blocks_only_its_own_key(store: Store) -> None:
    others = [*claims_with_key("a", 1, source="github"), *claims_with_key("b", 1), make_claim("free")]
    await store.claims.insert([*claims_with_key("a", 2), *others])
    leased = {(receipt.source, receipt.event_id): receipt for receipt in await lease(store)}
    assert sorted(leased) == [("github", "a-0"), ("stripe", "a-0"), ("stripe", "b-0"), ("stripe", "free")]
    await settle(store, [leased["stripe", "a-0"], leased["stripe", "free"]], State.FAILED)
    await settle(store, [leased["github", "a-0"], leased["stripe", "b-0"]])
    await store.claims.insert([*claims_with_key("a", 1, 1, source="github"), *claims_with_key("b", 1, 1)])
    assert sorted((receipt.source, receipt.event_id) for receipt in await lease(store)) == [
        ("github", "a-1"),
        ("stripe", "b-1"),
    ]


async def test_event_that_is_held_without_a_handler_does_not_block_its_key(store: Store, rows: Rows) -> None:
    await store.claims.insert(claims_with_key("a", 2))
    held = "UPDATE webhook_receipts SET unhandled_at = received_at WHERE event_id = 'a-0'"
    rows(held)
    assert event_ids(await lease(store)) == ["a-1"]


async def test_dead_letter_does_not_block_the_replay_of_an_earlier_event_of_its_key(store: Store) -> None:
    await store.claims.insert(claims_with_key("a", 3))
    first = await lease(store)
    await settle(store, first)
    await settle(store, await lease(store), State.FAILED)
    assert await lease(store) == [], "the dead letter blocks the later event"
    assert await store.operations.replay([first[0].receipt], "ops", {}) == [first[0].receipt]
    assert event_ids(await lease(store)) == ["a-0"]


async def test_database_rejects_two_processing_receipts_of_one_key(store: Store, database: str) -> None:
    await store.claims.insert([*claims_with_key("a", 2), make_claim("free_1"), make_claim("free_2")])
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
        run_sql(database, "UPDATE webhook_receipts SET status = 'processing' WHERE serial_key = 'a'")
    run_sql(database, "UPDATE webhook_receipts SET status = 'processing' WHERE serial_key IS NULL")


async def test_key_with_many_receipts_does_not_starve_other_keys(store: Store) -> None:
    for start in range(0, 2000, 500):
        await store.claims.insert(claims_with_key("in_0500", 500, start))
    for start in range(0, 1000, 500):
        await store.claims.insert([claims_with_key(f"in_{n:04d}", 1, 9000)[0] for n in range(start, start + 500)])
    scans, leases = 0, Counter[str]()
    while sum(leases.values()) - leases["in_0500"] < 999:
        leased = await lease(store, 32)
        assert len({receipt.serial_key for receipt in leased}) == len(leased)
        leases.update(str(receipt.serial_key) for receipt in leased)
        await settle(store, leased)
        scans += 1
        assert scans < 60, "no key may starve"
    assert leases["in_0500"] >= 2
    assert set(leases.values()) - {leases["in_0500"]} == {1}


@pytest.mark.sampled(1)
async def test_blocked_keys_do_not_starve_other_keys(store: Store) -> None:
    for start in range(0, 1500, 500):
        await store.claims.insert([claims_with_key(f"in_{n:04d}", 1)[0] for n in range(start, start + 500)])
    while leased := await lease(store, 500):
        await settle(store, leased, State.RETRYING, after=3600.0)
    await store.claims.insert([*claims_with_key("in_9999", 1), *claims_with_key("in_0000a", 1)])
    leased = [*await lease(store, 5), *await lease(store, 5), *await lease(store, 5)]
    assert sorted(event_ids(leased)) == ["in_0000a-0", "in_9999-0"]


async def test_receipts_with_and_without_a_key_alternate_at_a_limit_of_one(store: Store) -> None:
    free = [make_claim(f"free_{n}") for n in range(20)]
    await store.claims.insert([*free, *claims_with_key("a", 20)])
    kinds = Counter[bool]()
    for _ in range(20):
        leased = await lease(store, 1)
        kinds[leased[0].serial_key is None] += 1
        await settle(store, leased)
    assert kinds == {True: 10, False: 10}
