"""What every store records about duplicate deliveries."""

import pytest

from oncehook.model.claim import Duplicate
from oncehook.store.rows import MAX_DUPLICATES
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.stores import claim_one

pytestmark = pytest.mark.anyio


async def test_duplicates_are_recorded_in_order_and_counted_on_the_receipt(store: Store) -> None:
    receipt = await claim_one(store, make_claim(fingerprint=b"f"))
    await store.claims.note_duplicates([Duplicate(receipt, "d_2", b"f", True), Duplicate(receipt, None, b"g", False)])
    await store.claims.note_duplicates([Duplicate(receipt, "d_4", b"f", True)])
    recorded = await store.receipts.duplicates(receipt)
    assert [(d.delivery_id, d.same_body) for d in recorded] == [("d_2", True), (None, False), ("d_4", True)]
    assert all(d.received_at.endswith("Z") for d in recorded)
    stored = await store.receipts.get(receipt)
    assert stored is not None and stored.duplicates == 3


async def test_duplicate_of_a_pruned_receipt_is_not_recorded(store: Store, rows: Rows) -> None:
    receipt = await claim_one(store, make_claim(fingerprint=b"f"))
    await store.claims.note_duplicates([Duplicate(receipt + 1, None, b"f", True), Duplicate(receipt, None, b"f", True)])
    assert rows("SELECT receipt_id FROM webhook_deliveries") == [(receipt,)]


async def test_duplicate_is_not_recorded_on_the_receipt_of_another_event(store: Store, rows: Rows) -> None:
    """A restored backup gives the numbers of lost receipts to later events, while duplicates wait to be written."""
    receipt = await claim_one(store, make_claim(fingerprint=b"another event"))
    await store.claims.note_duplicates([Duplicate(receipt, None, b"f", True)])
    assert rows("SELECT * FROM webhook_deliveries") == []


@pytest.mark.parametrize("batch", [1, 37, 500])
async def test_up_to_a_hundred_duplicates_of_each_kind_are_recorded_per_receipt(
    store: Store, rows: Rows, batch: int
) -> None:
    receipt = await claim_one(store, make_claim("evt_1", fingerprint=b"f"))
    other = await claim_one(store, make_claim("evt_2", fingerprint=b"f"))
    flood = [Duplicate(receipt, None, (b"f", b"g")[n % 2], n % 2 == 0) for n in range(2 * MAX_DUPLICATES + 20)]
    for start in range(0, len(flood), batch):
        await store.claims.note_duplicates(flood[start : start + batch])
    await store.claims.note_duplicates([Duplicate(other, None, b"f", True)])
    counts = "SELECT receipt_id, same_body, count(*) FROM webhook_deliveries GROUP BY 1, 2 ORDER BY 1, 2"
    assert rows(counts) == [(receipt, False, MAX_DUPLICATES), (receipt, True, MAX_DUPLICATES), (other, True, 1)]
    assert MAX_DUPLICATES == 100


async def test_duplicates_of_two_receipts_in_one_batch_have_a_limit_each(store: Store, rows: Rows) -> None:
    first, second = [await claim_one(store, make_claim(name, fingerprint=b"f")) for name in ("evt_1", "evt_2")]
    flood = [Duplicate((first, second)[n % 2], None, b"f", True) for n in range(2 * MAX_DUPLICATES)]
    await store.claims.note_duplicates(flood)
    counts = "SELECT receipt_id, count(*) FROM webhook_deliveries GROUP BY 1 ORDER BY 1"
    assert rows(counts) == [(first, MAX_DUPLICATES), (second, MAX_DUPLICATES)]
