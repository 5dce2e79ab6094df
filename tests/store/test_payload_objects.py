"""The rows of payload objects: no object is forgotten, and none is deleted while a claim is about to need it."""

import asyncio

import pytest

from oncehook.model.errors import RowRefused
from oncehook.store.payload_objects import ObjectCounts
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim

pytestmark = pytest.mark.anyio


def address_of(name: str) -> str:
    return f"file:///payloads/2026-11-17/{name * 64}-{'0' * 16}"


async def test_recorded_event_gets_no_object(store: Store) -> None:
    await store.claims.insert([make_claim("evt_1")])
    known, new = (make_claim(event_id, body=b"large") for event_id in ("evt_1", "evt_2"))
    assert await store.payload_objects.reserve([(address_of("a"), known), (address_of("b"), new)]) == {address_of("b")}
    assert await store.payload_objects.counts() == ObjectCounts(1, 5, 0)


async def test_claim_takes_its_object_and_a_duplicate_does_not(store: Store, rows: Rows) -> None:
    claims = [make_claim("evt_1", body=b"", object=address_of(name), fingerprint=b"f" * 32) for name in "ab"]
    for claim in claims:
        await store.payload_objects.reserve([(claim.object or "", claim)])
    for claim in claims:
        await store.claims.insert([claim])
    taken = rows("SELECT address, receipt_id IS NOT NULL FROM webhook_payload_objects ORDER BY address")
    assert [(address, bool(is_taken)) for address, is_taken in taken] == [
        (address_of("a"), True), (address_of("b"), False)
    ]  # fmt: skip
    assert rows("SELECT object FROM webhook_payloads") == [(address_of("a"),)]


async def test_claim_with_objects_and_copies_and_small_bodies_records_all(store: Store, rows: Rows) -> None:
    await store.consumers.register({("audit", "stripe"): ["*"]}, {})
    large = make_claim("evt_1", body=b"", object=address_of("a"), keys=("token",))
    await store.payload_objects.reserve([(address_of("a"), large)])
    await store.claims.insert([large, make_claim("evt_2", body=b"small")])
    stored = rows("SELECT body, object FROM webhook_payloads ORDER BY receipt_id")
    assert stored == [(b"", address_of("a")), (b"small", None)]


async def test_object_that_another_event_has_is_never_taken(store: Store, rows: Rows) -> None:
    """Pruning one of the events would delete the body of the other."""
    first, second = (make_claim(event_id, body=b"", object=address_of("a")) for event_id in ("evt_1", "evt_2"))
    await store.payload_objects.reserve([(address_of("a"), first)])
    await store.claims.insert([first])
    with pytest.raises(RowRefused):
        await store.claims.insert([second])
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]


async def test_object_that_was_released_is_never_taken_by_a_late_claim(store: Store, rows: Rows) -> None:
    late = make_claim("evt_1", body=b"", object=address_of("a"))
    await store.payload_objects.reserve([(address_of("a"), late)])
    assert await store.payload_objects.release_unused(-10.0, 10) == 1
    with pytest.raises(RowRefused, match="its claim waited for too long"):
        await store.claims.insert([late])
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)], "an event is never recorded without its body"


@pytest.mark.parametrize("round", range(3))
async def test_claim_and_collection_at_the_same_moment_never_both_win(store: Store, rows: Rows, round: int) -> None:
    claims = [make_claim(f"evt_{n}", body=b"", object=address_of(f"{n:x}")) for n in range(16)]
    for claim in claims:
        await store.payload_objects.reserve([(claim.object or "", claim)])
    await asyncio.gather(
        *(store.claims.insert([claim]) for claim in claims),
        *(store.payload_objects.release_unused(-10.0, 3) for _ in range(4)),
        return_exceptions=True,
    )
    released = set(await store.payload_objects.released("", 100))
    referenced = {row[0] for row in rows("SELECT object FROM webhook_payloads")}
    assert not released & referenced and len(released | referenced) == 16


async def test_only_released_rows_are_deleted(store: Store) -> None:
    claim = make_claim("evt_1", body=b"", object=address_of("a"))
    await store.payload_objects.reserve([(address_of("a"), claim), (address_of("b"), claim)])
    await store.claims.insert([claim])
    assert await store.payload_objects.delete([address_of("a"), address_of("b")]) == 0
    assert await store.payload_objects.release_unused(-10.0, 10) == 1
    assert await store.payload_objects.released("", 10) == [address_of("b")]
    assert await store.payload_objects.released(address_of("b"), 10) == []
    assert await store.payload_objects.delete([address_of("a"), address_of("b")]) == 1


async def test_erasing_an_event_releases_its_own_object(store: Store) -> None:
    claims = [make_claim(f"evt_{name}", body=b"", object=address_of(name)) for name in "ab"]
    for claim in claims:
        await store.payload_objects.reserve([(claim.object or "", claim)])
    first, _ = await store.claims.insert(claims)
    assert await store.retention.erase([first.receipt], None, "ops", "{}") == 1
    assert await store.payload_objects.released("", 10) == [address_of("a")]
