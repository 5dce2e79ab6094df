"""The receipts that go to a queue of workers, on both databases."""

import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.rows import GivenUp
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_only_listed_receipts_that_are_due_are_leased(store: Store) -> None:
    first, second, third = await claim(store, "evt_1", "evt_2", "evt_3")
    leased, states = await store.leases.take_listed([first, third, 10**15], 30, "worker-1")
    assert [(row.receipt, row.attempt, row.event_id) for row in leased] == [
        (first, 1, "evt_1"),
        (third, 1, "evt_3"),
    ]
    assert states == {}
    again, states = await store.leases.take_listed([first, second], 30, "worker-2")
    assert [row.receipt for row in again] == [second]
    assert (states[first].status, states[first].lease_left is not None) == (State.PROCESSING, True)
    await store.leases.settle([Settled(second, again[0].lease, State.RETRYING, "retrying", after=100.0)])
    assert (await store.leases.take_listed([second], 30, "worker-2"))[0] == [], "its retry is not due"


async def test_the_state_says_why_a_receipt_is_not_leased(store: Store, rows: Rows) -> None:
    later, paused = await claim(store, "later", "paused")
    (leased,) = (await store.leases.take_listed([later], 30, "worker-1"))[0]
    await store.leases.settle([Settled(leased.receipt, leased.lease, State.RETRYING, "retrying", after=100.0)])
    await store.pauses.pause("stripe", "test")
    leases, states = await store.leases.take_listed([later, paused], 30, "worker-1")
    assert leases == []
    assert (states[later].status, states[later].is_paused) == (State.RETRYING, True)
    assert 95 < (states[later].due_in or 0) <= 100
    assert (states[paused].status, states[paused].due_in) == (State.RECEIVED, None)


async def test_a_listed_receipt_with_a_serial_key_leases_the_first_of_its_key(store: Store) -> None:
    first, second = await claim(store, "evt_1", "evt_2", serial_key="in_1")
    (leased,), states = await store.leases.take_listed([second], 30, "worker-1")
    assert (leased.receipt, leased.serial_key) == (first, "in_1")
    assert states[second].serial_key == "in_1"
    assert (await store.leases.take_listed([second], 30, "worker-2"))[0] == [], "the key is not free"
    assert await store.leases.take_keys([("stripe", "in_1")], 30, "worker-2") == []
    await store.leases.settle([Settled(first, leased.lease, State.PROCESSED, "processed")])
    assert [row.receipt for row in await store.leases.take_keys([("stripe", "in_1")], 30, "worker-2")] == [second]
    assert await store.leases.take_keys([], 30, "worker-2") == []


async def test_a_listed_receipt_of_another_consumer_is_not_leased(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", copies=(ConsumerClaim("billing"),))])
    ((receipt,),) = rows("SELECT id FROM webhook_receipts WHERE consumer = 'billing'")
    assert (await store.leases.take_listed([receipt], 30, "worker-1"))[0] == []
    leased, _ = await store.leases_of("billing").take_listed([receipt], 30, "worker-1")
    assert [(row.receipt, row.consumer) for row in leased] == [(receipt, "billing")]


async def test_a_receipt_whose_worker_died_is_leased_only_as_rescued(store: Store, rows: Rows) -> None:
    (receipt,) = await claim(store, "evt_1")
    rows("UPDATE webhook_receipts SET crashes = 1")
    leased, states = await store.leases.take_listed([receipt], 30, "worker-1")
    assert (leased, states[receipt].is_rescued) == ([], True)
    leased, _ = await store.leases.take_listed([receipt], 30, "worker-1", rescued=True)
    assert [row.receipt for row in leased] == [receipt]


async def test_overdue_receipts_are_listed_once_per_serial_key(store: Store) -> None:
    plain, first, _ = await claim(store, "plain"), *await claim(store, "s_1", "s_2", serial_key="in_1")
    assert await store.queue.overdue("main", 60) == []
    await store.schema.move_times_back(90)
    overdue = await store.queue.overdue("main", 60)
    assert [row.receipt for row in overdue] == [*plain, first]
    assert [row.receipt for row in await store.queue.overdue("main", 60, 100)] == [*plain, first]
    assert await store.queue.overdue("main", 60, 80) == [], "they have been due for longer"
    assert await store.queue.overdue("search", 60) == []
    await store.pauses.pause("stripe", "test")
    assert await store.queue.overdue("main", 60) == []


async def test_one_sweep_lists_a_limited_number_of_receipts_and_keys_the_oldest_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.store.queue.MAX_OVERDUE", 2)
    monkeypatch.setattr("oncehook.store.queue.MAX_KEYS", 1)
    plain = await claim(store, "plain_1", "plain_2", "plain_3")
    (first,), _ = await claim(store, "s_1", serial_key="in_1"), await claim(store, "s_2", serial_key="in_2")
    await store.schema.move_times_back(90)
    assert [row.receipt for row in await store.queue.overdue("main", 60)] == [*plain[:2], first]


async def test_copies_are_the_receipts_of_other_consumers(store: Store) -> None:
    copied = make_claim("evt_1", copies=(ConsumerClaim("billing"), ConsumerClaim("search", State.IGNORED)))
    (claimed,) = await store.claims.insert([copied])
    copies = await store.queue.copies([claimed.receipt])
    assert [(row.consumer, row.event_id, row.replays, row.lease) for row in copies] == [("billing", "evt_1", 0, 0)]


async def test_a_message_that_was_given_up_fails_only_a_receipt_that_waits(store: Store, rows: Rows) -> None:
    waiting, running, replayed, other = await claim(store, "waiting", "running", "replayed", "other")
    await store.leases.take_listed([running], 30, "worker-1")
    rows(f"UPDATE webhook_receipts SET replays = 1 WHERE id = {replayed}")
    names = {waiting: "waiting", running: "running", replayed: "replayed", other: "lost", 10**15: "missing"}
    given = [GivenUp(receipt, 0, "stripe", event_id) for receipt, event_id in names.items()]
    failed = await store.queue.fail(given, "SQS gave up")
    assert [(row.receipt, row.event_id, row.last_error) for row in failed] == [(waiting, "waiting", "SQS gave up")]
    assert await store.queue.fail(given, "SQS gave up") == []
    assert rows("SELECT event_id FROM webhook_dlq") == [("waiting",)]
