"""Leases of a lost timeline: after a failover or a restore, ids are drawn again, and no old lease matches them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from oncehook.model.effect import EffectState, SettledEffect
from oncehook.model.lease import Leased, first_lease
from oncehook.model.states import State
from oncehook.store.rows import EffectTarget
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.stores import claim_and_lease, open_store, processed

pytestmark = pytest.mark.anyio

SEND = [EffectTarget("function", "send", 30.0)]


@pytest.fixture
async def restored(store: Store, database: str, rows: Rows) -> AsyncIterator[tuple[Leased, Store]]:
    """A lease of the event `evt_0`, and another process after the database went back to before it arrived."""
    (lost,) = await claim_and_lease(store)
    go_back(database, rows)
    async with open_store(database) as other:
        yield lost, other


def go_back(database: str, rows: Rows) -> None:
    for table in ("webhook_receipts", "webhook_payloads", "webhook_effects"):
        rows(f"DELETE FROM {table}")
    if database.startswith("postgresql"):
        rows("ALTER SEQUENCE webhook_receipt_ids RESTART")
        rows("ALTER TABLE webhook_effects ALTER COLUMN id RESTART")
    else:
        rows("DELETE FROM sqlite_sequence")


async def test_lease_of_a_lost_timeline_cannot_settle_the_event_that_got_its_receipt_id(
    store: Store, restored: tuple[Leased, Store], rows: Rows
) -> None:
    lost, other = restored
    await other.claims.insert([make_claim("evt_other")])
    (current,) = await other.leases.take(1, 60, "second")
    assert (current.receipt, current.attempt) == (lost.receipt, lost.attempt), "the id must be drawn again"
    transaction = store.transaction()
    await transaction.connection()
    assert await transaction.settle([processed(lost)]) is False, "another event was settled without its handler"
    assert await store.leases.settle([processed(lost)]) == set()
    assert await store.leases.release([lost.lease_key]) == 0
    await extend(store, lost)
    assert rows("SELECT status, lease_until < '2100-01-01' FROM webhook_receipts") in (
        [("processing", True)],
        [("processing", 1)],
    )
    assert await other.leases.settle([processed(current)]) == {current.receipt}


async def extend(store: Store, lost: Leased) -> None:
    connection = store.heartbeat_connection()

    def beat() -> None:
        try:
            connection.extend([lost.lease_key], 100 * 365 * 86400.0)
        finally:
            connection.close()

    await asyncio.to_thread(beat)


async def test_first_lease_of_an_inline_event_differs_after_a_restore(store: Store, database: str, rows: Rows) -> None:
    leases = []
    for number in range(2):
        claim = make_claim(f"evt_{number}", inline_seconds=60.0, inline_lease=first_lease(), status=State.PROCESSING)
        async with open_store(database) as process:
            await process.claims.insert([claim])
        leases += rows("SELECT id, lease FROM webhook_receipts")
        assert leases[-1][1] == claim.inline_lease
        go_back(database, rows)
    (first, lease), (second, other) = leases
    assert first == second and lease != other


async def test_effect_lease_of_a_lost_timeline_cannot_settle_another_effect(
    store: Store, database: str, rows: Rows
) -> None:
    insert = (
        "INSERT INTO webhook_effects (scope, key, kind, target, args, source, receipt_id, status)"
        " VALUES ('stripe', '{}', 'function', 'send', '{{}}', 'stripe', 1, 'waiting')"
    )
    rows(insert.format("lost"))
    (lost,) = await store.effects.lease(1, "first", SEND)
    go_back(database, rows)
    rows(insert.format("current"))
    (current,) = await store.effects.lease(1, "second", SEND)
    assert current.id == lost.id, "the id must be drawn again"
    assert await store.effects.settle([SettledEffect(lost.id, lost.lease, EffectState.DONE)]) == set()
    assert await store.effects.settle([SettledEffect(current.id, current.lease, EffectState.DONE)]) == {current.id}
