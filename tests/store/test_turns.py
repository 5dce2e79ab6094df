"""Turns: which receipts of tenants a worker leases, and in which order."""

from collections import Counter

import pytest

from oncehook.model.lease import Leased
from oncehook.store.serial import MAX_KEYS
from oncehook.store.store import Store
from oncehook.store.turns import alternate, lease_turns
from tests.support.events import Rows, make_claim, make_leased

pytestmark = pytest.mark.anyio


@pytest.fixture
def tenants(store: Store) -> Store:
    """A store of a process whose source has tenants."""
    store.process.has_tenants = lambda: True
    return store


async def claim_events(store: Store, tenant: str, count: int, **changes: object) -> None:
    source = changes.get("source", "stripe")
    ids = [f"{source}-{tenant}-{number}" for number in range(count)]
    await store.claims.insert([make_claim(event_id, tenant=tenant, **changes) for event_id in ids])


async def take(store: Store, limit: int, *, rescued: bool = False) -> list[Leased]:
    return await store.leases.take(limit, 30.0, "w", rescued=rescued)


def counts(leased: list[Leased]) -> Counter[str]:
    return Counter(receipt.tenant for receipt in leased)


async def test_tenant_after_a_flood_is_in_the_next_lease(tenants: Store) -> None:
    await claim_events(tenants, "flood", 500)
    await take(tenants, 16)
    await claim_events(tenants, "late", 3)
    leased = await take(tenants, 16)
    assert counts(leased)["late"] == 3 and len(leased) == 16
    assert "late" in {receipt.tenant for receipt in leased[:2]}, "the tenants alternate in the queue of the worker"


async def test_tenants_get_equal_shares(tenants: Store) -> None:
    for tenant in ("a", "b", "c", "d"):
        await claim_events(tenants, tenant, 100)
    leased = [await take(tenants, 16) for _ in range(10)]
    total = sum((counts(batch) for batch in leased), Counter[str]())
    assert sum(total.values()) == 160 and max(total.values()) - min(total.values()) <= 8, total
    for batch in leased:
        assert len({receipt.tenant for receipt in batch[:4]}) == 4, "the first event of each tenant comes first"


async def test_every_tenant_has_its_turn_within_one_rotation(tenants: Store) -> None:
    for number in range(100):
        await claim_events(tenants, f"t{number:03}", 5)
    seen: set[str] = set()
    for _ in range(8):
        seen |= set(counts(await take(tenants, 16)))
    assert len(seen) == 100


async def test_lease_is_full_if_one_tenant_has_enough(tenants: Store) -> None:
    await claim_events(tenants, "flood", 100)
    await claim_events(tenants, "small", 1)
    assert len(await take(tenants, 32)) == 32
    assert len(await take(tenants, 32)) == 32


async def test_events_without_a_tenant_are_leased_next_to_a_flood(tenants: Store) -> None:
    await claim_events(tenants, "flood", 500)
    await claim_events(tenants, "", 10, source="github", provider="github")
    leased = counts(await take(tenants, 16))
    assert leased[""] >= 7, leased
    assert sum(leased.values()) == 16


async def test_same_name_at_two_sources_is_two_tenants(tenants: Store) -> None:
    await claim_events(tenants, "acme", 50)
    await claim_events(tenants, "acme", 2, source="github")
    assert Counter(receipt.source for receipt in await take(tenants, 10))["github"] == 2


async def test_events_of_one_tenant_are_leased_in_the_order_of_arrival(tenants: Store) -> None:
    await claim_events(tenants, "acme", 20)
    leased = await take(tenants, 8) + await take(tenants, 8)
    assert [receipt.event_id for receipt in leased] == [f"stripe-acme-{number}" for number in range(16)]


async def test_process_without_tenants_leases_their_events_in_the_order_of_arrival(store: Store) -> None:
    await claim_events(store, "flood", 20)
    await claim_events(store, "late", 1)
    assert counts(await take(store, 16)) == {"flood": 16}


async def test_paused_source_is_skipped(tenants: Store) -> None:
    await claim_events(tenants, "acme", 5)
    await claim_events(tenants, "acme", 5, source="github")
    await tenants.pauses.pause("github", "a person")
    assert {receipt.source for receipt in await take(tenants, 16)} == {"stripe"}


async def test_retry_that_is_not_due_waits(tenants: Store, rows: Rows) -> None:
    await claim_events(tenants, "acme", 2)
    later = "'2999-01-01T00:00:00.000000Z'"
    rows(f"UPDATE webhook_receipts SET status = 'retrying', next_attempt_at = {later}")
    await claim_events(tenants, "other", 1)
    assert counts(await take(tenants, 16)) == {"other": 1}
    assert await take(tenants, 16) == []


async def test_due_event_behind_many_waiting_tenants_is_found(tenants: Store, rows: Rows) -> None:
    claims = [make_claim(f"evt_{number}", tenant=f"a{number:05}") for number in range(MAX_KEYS + 200)]
    await tenants.claims.insert(claims)
    later = "'2999-01-01T00:00:00.000000Z'"
    rows(f"UPDATE webhook_receipts SET status = 'retrying', next_attempt_at = {later}")
    await claim_events(tenants, "z", 1)
    assert counts(await take(tenants, 16)) == {"z": 1}


async def test_rescued_receipt_of_a_tenant_is_leased(tenants: Store, rows: Rows) -> None:
    await claim_events(tenants, "flood", 20)
    await claim_events(tenants, "zeta", 1)
    rows("UPDATE webhook_receipts SET next_attempt_at = '2026-01-01T00:00:00.000000Z'")
    await take(tenants, 1)  # the floor of events without a tenant is behind all of these now
    rows("UPDATE webhook_receipts SET crashes = 1 WHERE tenant = 'zeta'")
    assert counts(await take(tenants, 1, rescued=True)) == {"zeta": 1}
    assert await take(tenants, 1, rescued=True) == []


async def test_receipt_whose_worker_crashed_is_not_leased_with_others(tenants: Store, rows: Rows) -> None:
    for tenant in ("acme", "zeta"):
        await claim_events(tenants, tenant, 2)
    rows("UPDATE webhook_receipts SET crashes = 1 WHERE tenant = 'zeta'")
    assert counts(await take(tenants, 16)) == {"acme": 2}, "it may kill the process of the others again"


async def test_two_workers_never_lease_the_same_receipt(tenants: Store) -> None:
    for tenant in ("a", "b", "c"):
        await claim_events(tenants, tenant, 40)
    other = tenants.leases_of("main")
    leased = []
    for _ in range(4):
        leased += await take(tenants, 16) + await other.take(16, 30.0, "v")
    numbers = [receipt.receipt for receipt in leased]
    assert len(numbers) == len(set(numbers)) == 120


# -- without a database ---------------------------------------------------------------------------------------------


def test_first_receipts_of_all_tenants_come_first() -> None:
    leased = [make_leased(tenant=tenant, receipt=number) for number, tenant in enumerate("aaabbc")]
    assert "".join(receipt.tenant for receipt in alternate(leased)) == "abcaba"


async def test_room_that_a_tenant_leaves_goes_to_the_others() -> None:
    waiting = {("stripe", "a"): 100, ("stripe", "b"): 1}
    requested: list[int] = []

    async def lease_turn(tenants: object, each: int, limit: int) -> list[Leased]:
        assert isinstance(tenants, list)
        requested.append(each)
        turn: list[Leased] = []
        for tenant in tenants:
            number = min(each, waiting[tenant], limit - len(turn))
            waiting[tenant] -= number
            turn += [make_leased(tenant=tenant[1])] * number
        return turn

    assert counts(await lease_turns(list(waiting), 16, lease_turn)) == {"a": 15, "b": 1}
    assert requested == [8, 7]
