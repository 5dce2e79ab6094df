"""The database's clock is set back by an hour: due receipts stay due, and new retries keep their backoff."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.rows import EffectTarget
from oncehook.store.store import Store
from tests.support.clocks import set_clock_back
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import claim_and_lease

pytestmark = pytest.mark.anyio


Clock = Callable[..., None]

TARGETS = [EffectTarget("call", "send", 30)]


@pytest.fixture
def go_back(database: str) -> Clock:
    """A function that sets the database's clock back, by an hour or some seconds."""
    return partial(set_clock_back, database)


async def lease(store: Store) -> list[str]:
    return sorted(leased.event_id for leased in await store.leases.take(10, 30, "worker"))


@pytest.mark.parametrize("serial_key", [None, "a key"])
async def test_receipt_from_the_future_is_due_after_the_clock_was_set_back(
    store: Store, go_back: Clock, serial_key: str | None
) -> None:
    await store.claims.insert([make_claim("evt_1", serial_key=serial_key)])
    go_back()
    assert await lease(store) == ["evt_1"]


async def fail(store: Store, event_id: str, after: float) -> None:
    """Lease the receipt, and settle its attempt as failed."""
    (leased,) = [receipt for receipt in await store.leases.take(10, 30, "worker") if receipt.event_id == event_id]
    settled = Settled(leased.receipt, leased.lease, State.RETRYING, "retrying", after=after, error="no")
    assert await store.leases.settle([settled]) == {leased.receipt}


@pytest.mark.parametrize("serial_key", [None, "a key"])
async def test_retry_scheduled_before_the_clock_was_set_back_is_due(
    store: Store, go_back: Clock, serial_key: str | None
) -> None:
    await store.claims.insert([make_claim("evt_1", serial_key=serial_key)])
    await fail(store, "evt_1", after=60)
    assert await lease(store) == []
    go_back()
    assert await lease(store) == ["evt_1"]


async def test_event_that_was_replayed_before_the_clock_was_set_back_is_due(store: Store, go_back: Clock) -> None:
    (claimed,) = await store.claims.insert([make_claim("evt_1", status=State.IGNORED)])
    assert await store.operations.replay([claimed.receipt], "ops", {}) == [claimed.receipt]
    go_back()
    assert await lease(store) == ["evt_1"]


@pytest.mark.parametrize("serial_key", [None, "a key"])
async def test_retry_scheduled_after_the_clock_was_set_back_keeps_its_backoff(
    store: Store, go_back: Clock, serial_key: str | None
) -> None:
    await store.claims.insert([make_claim("old")])
    go_back()
    assert await lease(store) == ["old"]
    await store.claims.insert([make_claim("evt_1", serial_key=serial_key)])
    await fail(store, "evt_1", after=600)
    assert await lease(store) == []


async def test_lease_of_a_dead_worker_expires_after_the_clock_was_set_back(store: Store, go_back: Clock) -> None:
    await store.claims.insert([make_claim("evt_1")])
    assert await lease(store) == ["evt_1"]
    assert await store.leases.expired(10, 0) == []
    go_back()
    assert [row.event_id for row in await store.leases.expired(10, 0)] == ["evt_1"]


@pytest.mark.parametrize("seconds", [5, 20, 28, 45, 3600])
async def test_lease_that_is_extended_after_the_clock_was_set_back_does_not_expire(
    store: Store, go_back: Clock, seconds: int
) -> None:
    (leased,) = await claim_and_lease(store)
    go_back(seconds)
    connection = store.heartbeat_connection()

    def extend() -> None:
        connection.extend([leased.lease_key], 30)
        connection.close()

    await asyncio.to_thread(extend)
    assert await store.leases.expired(10, 0) == []


async def test_effect_of_a_dead_relay_expires_after_the_clock_was_set_back(
    store: Store, database: str, go_back: Clock
) -> None:
    await record_effect(store, database)
    assert [effect.key for effect in await store.effects.lease(10, "worker", TARGETS)] == ["k"]
    assert await store.effects.expired(10, 0) == []
    go_back()
    assert [row.key for row in await store.effects.expired(10, 0)] == ["k"]


async def record_effect(store: Store, database: str) -> None:
    ((claimed),) = await store.claims.insert([make_claim("evt_1")])
    run_sql(
        database,
        "INSERT INTO webhook_effects (scope, key, kind, target, args, source, receipt_id, status) "
        f"VALUES ('s', 'k', 'call', 'send', '{{}}', 'stripe', {claimed.receipt}, 'waiting')",
    )


async def test_effect_from_the_future_is_due_after_the_clock_was_set_back(
    store: Store, database: str, go_back: Clock
) -> None:
    await record_effect(store, database)
    go_back()
    assert [effect.key for effect in await store.effects.lease(10, "worker", TARGETS)] == ["k"]
    assert await store.effects.lease(10, "worker", TARGETS) == []
