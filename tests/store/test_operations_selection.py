"""What a replay selects, counts and shows before it runs: the same events for every condition."""

import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from oncehook.model.claim import ConsumerClaim, Duplicate
from oncehook.model.receipt import Filter
from oncehook.model.states import UNHANDLED, State
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim

pytestmark = pytest.mark.anyio

EVENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "in github": {"source": "github", "type": "push"},
    "of acme": {"tenant": "acme", "type": "invoice.paid.late"},
    "failed": {"status": State.FAILED, "type": "invoice"},
    "similar": {"type": "invoice_paid", "object_id": "in_2"},
    "held": {"type": "unknown"},
    "held and retried": {"type": "unknown"},
    "held once": {"type": "unknown", "status": State.IGNORED},
    "needle": {"body": b"{}"},
    "delivery": {"delivery_id": "needle"},
    "correlation": {"correlation_id": "needle"},
    "object": {"object_id": "needle"},
    "body": {"body": b'{"id": "body", "note": "a needle in it"}'},
}
LEDGER = "body of ledger"
"""The receipt that another consumer has of the last event."""
STRIPE = {*EVENTS, LEDGER} - {"in github"}
SELECTIONS: dict[str, tuple[Filter, set[str]]] = {
    "everything": (Filter(), {*EVENTS, LEDGER}),
    "source": (Filter(source="stripe"), STRIPE),
    "tenant": (Filter(tenant="acme"), {"of acme"}),
    "no tenant": (Filter(tenant=""), set()),
    "main": (Filter(consumer="main"), set(EVENTS)),
    "another consumer": (Filter(consumer="ledger"), {LEDGER}),
    "type": (Filter(type="invoice.paid"), STRIPE - {"failed", "similar", "held", "held and retried", "held once"}),
    "longer type": (Filter(type="invoice.paid.late"), {"of acme"}),
    "type of another source": (Filter(type="push"), {"in github"}),
    "object": (Filter(object="in_2"), {"similar"}),
    "status": (Filter(status="failed"), {"failed"}),
    "status and type": (Filter(status="received", type="unknown"), {"held"}),
    "without a handler": (Filter(status=UNHANDLED), {"held", "held and retried"}),
    "text": (Filter(search="needle"), {"needle", "delivery", "correlation", "object", "body", LEDGER}),
    "text and object": (
        Filter(search="needle", consumer="main", object="in_1"),
        {"needle", "delivery", "correlation", "body"},
    ),
}


@pytest.fixture
async def filled(store: Store, rows: Rows) -> AsyncIterator[Store]:
    """A store with an event for each condition."""
    copies = (ConsumerClaim("ledger"),)
    claims = [
        make_claim(event_id, **facts, copies=copies if event_id == "body" else ()) for event_id, facts in EVENTS.items()
    ]
    await store.claims.insert(claims)
    rows("UPDATE webhook_receipts SET unhandled_at = received_at WHERE event_id LIKE 'held%'")
    rows("UPDATE webhook_receipts SET status = 'retrying' WHERE event_id = 'held and retried'")
    yield store


def name_of(event_id: str, consumer: str) -> str:
    return event_id if consumer == "main" else f"{event_id} of {consumer}"


@pytest.mark.parametrize("condition", SELECTIONS)
async def test_selection_and_its_count_are_what_a_search_finds(filled: Store, condition: str) -> None:
    filter, expected = SELECTIONS[condition]
    found = await filled.receipts.find(filter, limit=100)
    assert {name_of(receipt.event_id, receipt.consumer) for receipt in found} == expected
    selected = [receipt for receipt, _ in await filled.operations.select(Selection(filter), after=0, limit=100)]
    assert {name_of(receipt.event_id, receipt.consumer) for receipt in selected} == expected
    assert sum(row.receipts for row in await filled.operations.count(Selection(filter))) == len(expected)
    for receipts in (found, selected):
        held = {receipt.event_id for receipt in receipts if receipt.unhandled_at is not None}
        assert held == expected & {"held", "held and retried"}


async def test_selection_says_which_payloads_are_gone_and_which_events_have_duplicates(filled: Store) -> None:
    (plain,) = await filled.receipts.find(Filter(object="in_1", search="plain"), limit=10)
    (body,) = await filled.receipts.find(Filter(consumer="main", search="a needle"), limit=10)
    await filled.retention.erase([plain.receipt], None, "ops", "{}")
    fingerprint = hashlib.sha256(EVENTS["body"]["body"]).digest()
    await filled.claims.note_duplicates([Duplicate(body.receipt, None, fingerprint, True)])
    selected = await filled.operations.select(Selection(), after=0, limit=100)
    assert [receipt.event_id for receipt, has_payload in selected if not has_payload] == ["plain"]
    counted = await filled.operations.count(Selection())
    assert sum(row.receipts for row in counted if not row.has_payload) == 1
    found = await filled.receipts.find(Filter(), limit=100)
    for receipts in (found, [receipt for receipt, _ in selected]):
        assert {(one.event_id, one.consumer): one.duplicates for one in receipts if one.duplicates} == {
            ("body", "main"): 1, ("body", "ledger"): 1
        }  # fmt: skip


async def test_selection_and_its_count_have_the_same_times(store: Store) -> None:
    await store.claims.insert([make_claim("old")])
    await store.schema.move_times_back(3600)
    await store.claims.insert([make_claim("new")])
    between = await store.operations.now() - timedelta(minutes=30)
    for selection, expected in (
        (Selection(Filter(since=between)), ["new"]),
        (Selection(Filter(until=between)), ["old"]),
        (Selection(horizon=between), ["old"]),
    ):
        selected = await store.operations.select(selection, after=0, limit=10)
        assert [receipt.event_id for receipt, _ in selected] == expected
        assert [row.receipts for row in await store.operations.count(selection)] == [1]
    everything = await store.operations.select(Selection(), after=0, limit=10)
    page = await store.operations.select(Selection(), after=0, limit=1)
    rest = await store.operations.select(Selection(), after=page[0][0].receipt, limit=10)
    assert len(page) == 1 and page + rest == everything


async def test_version_selects_what_it_attempted_before(store: Store, rows: Rows) -> None:
    """Also if a later version settled the event. Attempts of other events do not count."""
    claims = [make_claim(event_id) for event_id in ("first by v1", "by v1", "by v2")]
    receipts = [claimed.receipt for claimed in await store.claims.insert(claims)]
    rows("UPDATE webhook_receipts SET version = 'v2'")
    rows(f"UPDATE webhook_receipts SET version = 'v1' WHERE id = {receipts[1]}")
    attempt = "INSERT INTO webhook_past_attempts (receipt_id, number, started_at, outcome, version) VALUES"
    rows(f"{attempt} ({receipts[2]}, 1, '2026-11-18T00:00:00.000000Z', 'retrying', 'v2')")
    rows(f"{attempt} ({receipts[0]}, 1, '2026-11-18T00:00:00.000000Z', 'retrying', 'v1')")
    selection = Selection(handled_by="v1")
    selected = await store.operations.select(selection, after=0, limit=10)
    assert [receipt.event_id for receipt, _ in selected] == ["first by v1", "by v1"]
    assert [row.receipts for row in await store.operations.count(selection)] == [2]
