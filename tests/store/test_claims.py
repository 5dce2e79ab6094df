"""What every store does with claims."""

import asyncio
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from oncehook.model.claim import ConsumerClaim
from oncehook.model.errors import RowRefused
from oncehook.model.receipt import StoredPayload
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.events import NO_STATE, Rows, make_claim
from tests.support.stores import claim_one

pytestmark = pytest.mark.anyio


COUNT = "SELECT count(*) FROM webhook_receipts"


async def test_first_claim_stores_a_receipt_with_its_payload(store: Store, rows: Rows) -> None:
    occurred = datetime(2026, 11, 15, 3, 4, 5, 678901, tzinfo=UTC)
    claim = make_claim("evt_1", occurred_at=occurred, delivery_id="d_1", correlation_id="c_1", object_id="in_9")
    (claimed,) = await store.claims.insert([claim])
    assert (claimed.fresh, claimed.status, claimed.same_body) == (True, State.RECEIVED, True)
    receipt = await store.receipts.get(claimed.receipt)
    assert receipt is not None
    assert (receipt.source, receipt.provider, receipt.event_id) == ("stripe", "stripe", "evt_1")
    assert (receipt.type, receipt.object_id, receipt.delivery_id) == ("invoice.paid", "in_9", "d_1")
    assert (receipt.occurred_at, receipt.correlation_id, receipt.status) == (occurred, "c_1", State.RECEIVED)
    assert (receipt.attempts, receipt.duplicates, receipt.replays, receipt.last_error) == (0, 0, 0, None)
    assert abs((datetime.now(UTC) - receipt.received_at).total_seconds()) < 60
    assert await store.receipts.payload(claimed.receipt) == StoredPayload(
        claim.body, {"content-type": "application/json"}
    )
    assert rows(COUNT) == [(1,)]


async def test_second_claim_of_an_event_is_a_duplicate_and_changes_nothing(store: Store, rows: Rows) -> None:
    receipt = await claim_one(store, make_claim("evt_1", status=State.IGNORED))
    before = rows("SELECT * FROM webhook_receipts"), rows("SELECT * FROM webhook_payloads")
    (again,) = await store.claims.insert([make_claim("evt_1")])
    assert (again.receipt, again.fresh, again.status, again.same_body) == (receipt, False, State.IGNORED, True)
    assert (rows("SELECT * FROM webhook_receipts"), rows("SELECT * FROM webhook_payloads")) == before


async def test_duplicate_with_another_body_is_flagged_and_the_first_body_is_kept(store: Store) -> None:
    receipt = await claim_one(store, make_claim("evt_1", body=b"first"))
    (other,) = await store.claims.insert([make_claim("evt_1", body=b"second")])
    assert (other.receipt, other.fresh, other.same_body) == (receipt, False, False)
    payload = await store.receipts.payload(receipt)
    assert payload is not None and payload.body == b"first"


async def test_same_event_id_in_two_sources_makes_two_receipts(store: Store, rows: Rows) -> None:
    live, test = await store.claims.insert([make_claim("evt_1", source="live"), make_claim("evt_1", source="test")])
    assert live.fresh and test.fresh and live.receipt != test.receipt
    assert rows(COUNT) == [(2,)]


async def test_duplicate_of_a_tenant_is_that_of_its_own_receipt(store: Store) -> None:
    names = ("", "acme", "globex")
    first = await store.claims.insert([make_claim("evt_1", tenant=name, body=name.encode()) for name in names])
    assert all(claimed.fresh for claimed in first) and len({claimed.receipt for claimed in first}) == 3
    for number, name in enumerate(names):
        (again,) = await store.claims.insert([make_claim("evt_1", tenant=name, body=name.encode())])
        assert (again.fresh, again.receipt, again.same_body) == (False, first[number].receipt, True)


@pytest.mark.parametrize("size", [3, 70, 700])
async def test_insert_returns_results_in_the_order_of_the_claims(store: Store, size: int) -> None:
    known = [make_claim(f"evt_{n}") for n in range(1, size, 3)]
    receipts = {c.event_id: o.receipt for c, o in zip(known, await store.claims.insert(known), strict=True)}
    batch = [make_claim(f"evt_{n}", body=b"%d" % n) for n in range(size)]
    outcomes = await store.claims.insert(batch)
    assert [o.fresh for o in outcomes] == [c.event_id not in receipts for c in batch]
    assert [o.same_body for o in outcomes] == [c.event_id not in receipts for c in batch]
    for claim, outcome in zip(batch, outcomes, strict=True):
        receipt = await store.receipts.get(outcome.receipt) if size < 100 else None
        assert receipt is None or receipt.event_id == claim.event_id
        assert outcome.receipt == receipts.get(claim.event_id, outcome.receipt)
    assert len({o.receipt for o in outcomes}) == size


async def test_insert_stores_each_payload_of_a_batch_with_its_receipt(store: Store, rows: Rows) -> None:
    batch = [make_claim(f"evt_{n}", body=b"body of evt_%d" % n) for n in range(300)]
    await store.claims.insert(batch[::2])
    await store.claims.insert(batch)
    stored = rows("SELECT r.event_id, p.body FROM webhook_receipts r JOIN webhook_payloads p ON p.receipt_id = r.id")
    assert dict(stored) == {claim.event_id: claim.body for claim in batch}


async def test_insert_keeps_the_optional_fields_of_each_event_in_a_batch(store: Store) -> None:
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    nothing: dict[str, Any] = {
        "type": None,
        "object_id": None,
        "delivery_id": None,
        "correlation_id": None,
        "occurred_at": None,
    }
    everything: dict[str, Any] = {
        "type": "t",
        "object_id": "o",
        "delivery_id": "",
        "correlation_id": "c",
        "occurred_at": moment,
    }
    mixed = [nothing, everything, nothing | {"delivery_id": "d"}, everything | {"object_id": None}]
    for number, batch in enumerate((mixed, [nothing], [everything], [nothing, nothing | {"delivery_id": ""}])):
        claims = [make_claim(f"{number}-{position}", **fields) for position, fields in enumerate(batch)]
        for claim, claimed in zip(claims, await store.claims.insert(claims), strict=True):
            receipt = await store.receipts.get(claimed.receipt)
            assert receipt is not None and claimed.fresh
            assert {name: getattr(receipt, name) for name in nothing} == {n: getattr(claim, n) for n in nothing}


@pytest.mark.parametrize("year", [1, 13, 99, 999, 1969, 2026, 9999])  # Go writes the year 1 for "no time"
async def test_occurred_at_of_any_year_is_stored_exactly(store: Store, year: int) -> None:
    moment = datetime(year, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    (claimed,) = await store.claims.insert([make_claim(occurred_at=moment)])
    receipt = await store.receipts.get(claimed.receipt)
    assert receipt is not None and receipt.occurred_at == moment
    assert receipt.as_json()["occurred_at"] == f"{year:04}-01-01T23:59:59.999999Z"


BODIES = {
    "empty": b"",
    "with NULs": b'{"a":"\x00"}\x00',
    "not UTF-8": bytes(range(256)),
    "1 MiB": bytes(range(256)) * 4096,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_body_is_stored_byte_for_byte(store: Store, body: bytes) -> None:
    payload = await store.receipts.payload(await claim_one(store, make_claim(body=body)))
    assert payload is not None and payload.body == body


async def test_event_ids_of_255_bytes_are_stored_in_full(store: Store, rows: Rows) -> None:
    for stem in ("a" * 254, "é" * 127):
        first, second = await store.claims.insert([make_claim(stem + "1", source="s" * 63), make_claim(stem + "2")])
        assert first.fresh and second.fresh
    assert rows("SELECT max(length(event_id)) FROM webhook_receipts") == [(255,)]


async def test_event_ids_are_compared_byte_by_byte(store: Store) -> None:
    ids = ["Evt", "evt", "evt ", " evt", "evt\t", "evt\n", "ＥＶＴ", "évt", unicodedata.normalize("NFD", "évt"), "ⓔvt"]
    outcomes = await store.claims.insert([make_claim(id) for id in ids])
    assert all(o.fresh for o in outcomes)
    again = await store.claims.insert([make_claim(id) for id in reversed(ids)])
    assert [o.receipt for o in again] == [o.receipt for o in reversed(outcomes)]


async def test_concurrent_claims_of_one_event_store_one_receipt(store: Store, rows: Rows) -> None:
    outcomes = await asyncio.gather(*(store.claims.insert([make_claim("evt_1")]) for _ in range(8)))
    assert sorted(o.fresh for (o,) in outcomes) == [False] * 7 + [True]
    assert len({o.receipt for (o,) in outcomes}) == 1
    assert rows(COUNT) == [(1,)]


INVALID = {
    "an unknown status": {"status": NO_STATE},
    "an id of 256 bytes": {"event_id": "x" * 256},
    "an empty id": {"event_id": ""},
    "a lone surrogate": {"event_id": "\ud800"},
    "an empty source": {"source": ""},
}


@pytest.mark.parametrize("change", INVALID.values(), ids=INVALID.keys())
async def test_invalid_row_is_rejected_and_nothing_of_its_batch_is_stored(
    store: Store, rows: Rows, change: dict[str, object]
) -> None:
    invalid = replace(make_claim("evt_2"), **change)
    with pytest.raises(RowRefused) as rejection:
        await store.claims.insert([make_claim("evt_1"), invalid, make_claim("evt_3")])
    assert "evt_" not in str(rejection.value)
    assert rows(COUNT) == [(0,)]
    assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh


async def test_inline_claim_is_leased_at_once(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", inline_seconds=30.0, inline_lease=5), make_claim("evt_2")])
    facts = "SELECT attempts, lease = 5, lease_until IS NOT NULL FROM webhook_receipts ORDER BY event_id"
    assert rows(facts) == [(1, True, True), (0, False, False)]


async def test_new_event_gets_a_receipt_for_each_consumer(store: Store, rows: Rows) -> None:
    copies = (ConsumerClaim("crm"), ConsumerClaim("search", State.IGNORED, "its filter left it out"))
    for _ in range(2):  # the second is a duplicate
        await store.claims.insert([make_claim("evt_1", copies=copies), make_claim("evt_2")])
    receipts = "SELECT event_id, consumer, status, last_error FROM webhook_receipts ORDER BY event_id, consumer"
    assert rows(receipts) == [
        ("evt_1", "crm", "received", None),
        ("evt_1", "main", "received", None),
        ("evt_1", "search", "ignored", "its filter left it out"),
        ("evt_2", "main", "received", None),
    ]


async def test_claim_with_a_taken_key_is_a_duplicate_of_the_receipt_that_has_it(store: Store, rows: Rows) -> None:
    first = await store.claims.insert_or_find(make_claim("evt_1", keys=("k1",), body=b"first"))
    assert (first.fresh, first.same_body) == (True, True)
    for body, same in ((b"first", True), (b"second", False)):
        found = await store.claims.insert_or_find(make_claim("evt_2", keys=("k0", "k1"), body=body))
        assert (found.receipt, found.fresh, found.same_body) == (first.receipt, False, same)
    assert rows(COUNT) == [(1,)]
