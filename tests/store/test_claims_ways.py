"""Each way to claim stores the same receipt: alone, with receipts of other consumers, and with a payload object.

PostgreSQL has a statement for each, because the shortest one is the quickest.
"""

from typing import Any

import pytest

from oncehook.model.claim import Claim, ConsumerClaim
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.fsck import assert_fsck_is_clean

pytestmark = pytest.mark.anyio

CONSUMERS = ("crm", "search")
"""One is before `main` in the alphabet, and one after it."""
COPIES = tuple(map(ConsumerClaim, CONSUMERS))
KINDS: dict[str, dict[str, Any]] = {
    "waiting": {"serial_key": "a"},
    "inline": {"inline_seconds": 60.0, "inline_lease": 7, "status": State.PROCESSING},
    "failed": {"status": State.FAILED, "last_error": "it cannot be read"},
    "ignored": {"status": State.IGNORED, "last_error": "its filter left it out"},
}
WAYS = ("alone", "with copies", "with an object", "with copies and an object")
COLUMNS = """
    status, tenant, attempts, lease, is_inline, leased_at IS NOT NULL, lease_until IS NOT NULL, failed_at IS NOT NULL,
    next_attempt_at, last_error, serial_key, origin, main_id IS NULL
"""


def address_of(claim: Claim) -> str:
    return f"file:///payloads/2026-11-17/{claim.fingerprint.hex()}-{'0' * 16}"


async def claim_in_one_way(store: Store, event_id: str, way: str, **facts: Any) -> int:
    """Claim a new event in one of the ways, and return its receipt."""
    made = make_claim(event_id, copies=COPIES if "copies" in way else (), **facts)
    if "object" in way:
        changes = {"body": b"", "object": address_of(made), "fingerprint": made.fingerprint}
        made = make_claim(event_id, copies=made.copies, **{**facts, **changes})
        assert await store.payload_objects.reserve([(address_of(made), made)]) == {address_of(made)}
    (claimed,) = await store.claims.insert([made])
    assert claimed.fresh
    return claimed.receipt


@pytest.mark.parametrize("tenant", ["", "acme"])
async def test_every_way_to_claim_stores_the_same_receipt(store: Store, rows: Rows, database: str, tenant: str) -> None:
    for kind, facts in KINDS.items():
        for way in WAYS:
            await claim_in_one_way(store, f"{kind} {way}", way, tenant=tenant, origin="queue", **facts)
        stored = rows(f"SELECT {COLUMNS} FROM webhook_receipts WHERE consumer = 'main' AND event_id LIKE '{kind} %'")
        assert len(stored) == len(WAYS) and len(set(stored)) == 1, "each way must store the same receipt"
    copies = set(rows(f"SELECT {COLUMNS} FROM webhook_receipts WHERE consumer <> 'main'"))
    assert len(copies) == 1, "the receipts of other consumers wait, whatever the first receipt does"
    assert_fsck_is_clean(database)


@pytest.mark.parametrize("way", WAYS)
async def test_key_of_one_tenant_is_free_for_another(store: Store, way: str) -> None:
    acme = await claim_in_one_way(store, "evt_1", way, tenant="acme", keys=("token",))
    other = await claim_in_one_way(store, "evt_2", way, tenant="globex", keys=("token",))
    for tenant, receipt in ("acme", acme), ("globex", other):
        found = await store.claims.insert_or_find(make_claim("evt_3", tenant=tenant, keys=("token",)))
        assert (found.receipt, found.fresh) == (receipt, False)


@pytest.mark.parametrize("way", WAYS)
async def test_key_finds_the_receipt_that_has_it_among_others(store: Store, way: str) -> None:
    await claim_in_one_way(store, "evt_1", way)
    receipt = await claim_in_one_way(store, "evt_2", way, keys=("token",), status=State.IGNORED)
    await claim_in_one_way(store, "evt_3", way, keys=("another",))
    found = await store.claims.insert_or_find(make_claim("evt_4", keys=("token",)))
    assert (found.receipt, found.status) == (receipt, State.IGNORED)


async def test_duplicate_is_that_of_the_first_receipt_not_of_another_consumer(store: Store) -> None:
    receipt = await claim_in_one_way(store, "evt_1", "with copies", status=State.IGNORED)
    (again,) = await store.claims.insert([make_claim("evt_1", copies=COPIES)])
    assert (again.receipt, again.fresh, again.status) == (receipt, False, State.IGNORED)


@pytest.mark.parametrize("consumer", CONSUMERS)
async def test_consumer_leases_the_whole_payload_of_the_event(store: Store, consumer: str) -> None:
    for way in WAYS[1:]:
        await claim_in_one_way(store, way, way, headers=f'{{"of":"{way}"}}', type="invoice.paid")
    leased = {one.event_id: one for one in await store.leases_of(consumer).take(10, 30, "worker")}
    assert sorted(leased) == ["with copies", "with copies and an object"]
    for way, one in leased.items():
        made = make_claim(way)
        assert one.headers == f'{{"of":"{way}"}}'
        assert (one.body, one.object) == ((b"", address_of(made)) if "object" in way else (made.body, None))
