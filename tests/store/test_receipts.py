"""How every store finds receipts: by each filter, by all of them together, and page by page."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.lease import Settled
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.store.store import Store
from tests.support.events import EVENT_KEYS, Rows, make_claim
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_missing_receipt_has_no_payload_and_no_duplicates(store: Store) -> None:
    assert await store.receipts.get(12345) is None
    assert await store.receipts.payload(12345) is None
    assert await store.receipts.duplicates(12345) == []


async def test_by_event_id_finds_receipts_in_all_sources(store: Store) -> None:
    (first,) = await claim(store, "evt_1")
    (second,) = await claim(store, "evt_1", source="other")
    await claim(store, "evt_2")
    assert {r.receipt for r in await store.receipts.by_event_id("evt_1", limit=10)} == {first, second}
    assert await store.receipts.by_event_id("evt_3", limit=10) == []
    assert await store.receipts.sources() == ["other", "stripe"]


async def find_ids(store: Store, **conditions: object) -> list[str]:
    """The event ids of matching receipts, newest first."""
    return [receipt.event_id for receipt in await store.receipts.find(Filter(**conditions), limit=100)]  # type: ignore[arg-type]


@pytest.fixture
async def filled(store: Store, rows: Rows) -> Store:
    """A store with six receipts of today, received a minute apart from noon on."""
    first, *_ = await store.claims.insert(
        [
            make_claim("a", type="invoice.paid", object_id="in_1", body=b'{"note":"Gr\xc3\xbc\xc3\x9fe 100%"}'),
            make_claim("b", type="invoice.payment_failed", object_id="in_2", status=State.FAILED, body=b"{}"),
            make_claim("c", type="invoice", object_id="in_1", delivery_id="d_3", body=b"{}"),
            make_claim("d", type="invoicing.done", object_id=None, correlation_id="trace_4", body=b"{}"),
            make_claim("e", type="push", source="github", object_id="in_1", status=State.IGNORED, body=b"{}"),
            make_claim("f", type=None, source="github", body=b'"a"'),
        ]
    )
    receipt = await store.receipts.get(first.receipt)
    assert receipt is not None
    noon = receipt.received_at.replace(hour=12, minute=0, second=0, microsecond=0)
    for minute, event_id in enumerate("abcdef"):
        received = rfc3339(noon + timedelta(minutes=minute))
        rows(f"UPDATE webhook_receipts SET received_at = '{received}' WHERE event_id = '{event_id}'")
    return store


async def test_find_returns_all_receipts_newest_first(filled: Store) -> None:
    assert await find_ids(filled) == ["f", "e", "d", "c", "b", "a"]


async def test_find_filters_by_source(filled: Store) -> None:
    assert await find_ids(filled, source="github") == ["f", "e"]
    assert await find_ids(filled, source="git") == []


TYPES = {
    "invoice": ["c", "b", "a"],  # as a dotted prefix: not invoicing
    "invoice.*": ["b", "a"],
    "invoice.paid": ["a"],
    "*.p*": ["b", "a"],
    "invoic?": ["c", "b", "a"],
    "[hp]ush": [],  # a bracket is a character like any other
    "[!p]*": [],
    "i_voice": [],
    "invoice\\": [],
    "INVOICE": [],
    "invoice.paid|push": [],
    "invoice_payment": [],
    "(": [],
    "%": [],
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("pattern", "expected"), TYPES.items())
async def test_find_filters_by_type_pattern_and_by_dotted_prefix(
    filled: Store, pattern: str, expected: list[str]
) -> None:
    assert await find_ids(filled, type=pattern) == expected


@pytest.mark.parametrize("type_", ["v2.core.account[requirements].updated", "a]b", "[!x]", "100%_", "back\\slash"])
async def test_find_treats_special_characters_of_a_type_literally(filled: Store, type_: str) -> None:
    await filled.claims.insert([make_claim("g", type=type_)])
    assert await find_ids(filled, type=type_) == ["g"]
    assert await find_ids(filled, type=type_[:-1] + "?") == ["g"]


async def test_find_filters_by_object(filled: Store) -> None:
    assert await find_ids(filled, object="in_1") == ["f", "e", "c", "a"]


async def test_find_filters_by_status(filled: Store) -> None:
    assert await find_ids(filled, status="failed") == ["b"]
    assert await find_ids(filled, status="processed") == []


async def received_at(store: Store, event_id: str) -> datetime:
    (receipt,) = [r for r in await store.receipts.find(Filter(), limit=100) if r.event_id == event_id]
    return receipt.received_at


async def test_find_includes_since_and_excludes_until(filled: Store) -> None:
    moment = await received_at(filled, "c")
    assert await find_ids(filled, since=moment) == ["f", "e", "d", "c"]
    assert await find_ids(filled, until=moment) == ["b", "a"]
    assert await find_ids(filled, since=moment, until=moment + timedelta(minutes=1)) == ["c"]
    assert await find_ids(filled, since=moment + timedelta(microseconds=1)) == ["f", "e", "d"]


SEARCHES = {
    "b": ["b"],
    "a": ["f", "a"],  # an id, and a text in a payload
    "in_2": ["b"],
    "d_3": ["c"],
    "trace_4": ["d"],
    "Grüße": ["a"],
    "100%": ["a"],
    "1__%": [],
    "grüße": [],
    "nowhere": [],
}


@pytest.mark.parametrize(("text", "expected"), SEARCHES.items())
async def test_find_searches_ids_and_payloads(filled: Store, text: str, expected: list[str]) -> None:
    assert await find_ids(filled, search=text) == expected


async def test_find_combines_all_conditions(filled: Store) -> None:
    since = await received_at(filled, "a")
    both = await find_ids(filled, source="stripe", type="invoice", object="in_1", since=since, status="received")
    assert both == ["c", "a"]
    assert await find_ids(filled, source="github", type="invoice") == []


async def test_find_returns_at_most_the_limit(filled: Store) -> None:
    assert [r.event_id for r in await filled.receipts.find(Filter(), limit=2)] == ["f", "e"]


@pytest.mark.parametrize("size", [1, 7, 25, 26])
async def test_pages_cover_every_receipt_once_if_all_have_the_same_time(store: Store, rows: Rows, size: int) -> None:
    await store.claims.insert([make_claim(f"evt_{n:02}") for n in range(25)])
    rows("UPDATE webhook_receipts SET received_at = '2026-11-15T12:00:00.000000Z'")
    met: list[int] = []
    before = None
    while page := await store.receipts.find(Filter(source="stripe"), limit=size, before=before):
        assert len(page) <= size
        met += [receipt.receipt for receipt in page]
        before = rfc3339(page[-1].received_at) or "", page[-1].receipt
    assert met == sorted(met, reverse=True)
    assert len(set(met)) == len(met) == 25


@pytest.mark.parametrize("correlation", [None, "trace_1"])
async def test_receipt_as_json_has_exactly_the_documented_keys(store: Store, correlation: str | None) -> None:
    (claimed,) = await store.claims.insert([make_claim(correlation_id=correlation)])
    (receipt,) = await store.receipts.find(Filter(), limit=1)
    event: dict[str, Any] = receipt.as_json()
    assert sorted(event) == sorted(EVENT_KEYS)
    assert event["correlation_id"] == (correlation or str(claimed.receipt))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["received_at"])
    assert (event["status"], event["processed_at"]) == ("received", None)


async def test_consumers_of_an_event_are_listed_with_main_first(store: Store) -> None:
    copies = (ConsumerClaim("ledger", State.IGNORED, "not in euros"), ConsumerClaim("analytics"))
    (receipt,) = await claim(store, "evt_1", copies=copies)
    await claim(store, "evt_2", copies=copies)
    (leased,) = await store.leases_of("analytics").take(1, 30, "w")
    failed = Settled(
        leased.receipt, leased.lease, State.RETRYING, "retrying", after=60, error="E: x", handler="app.track"
    )
    await store.leases.settle([failed])
    for receipts in ([receipt], [leased.receipt]):
        event = await store.receipts.get(receipts[0])
        assert event is not None
        main, analytics, ledger = await store.receipts.consumers_of(event)
        assert (main.receipt, main.consumer, main.status, main.attempts) == (receipt, "main", "received", 0)
        assert (analytics.receipt, analytics.consumer, analytics.handler) == (leased.receipt, "analytics", "app.track")
        assert (analytics.status, analytics.attempts, analytics.last_error) == ("retrying", 1, "E: x")
        assert analytics.next_attempt_at is not None and main.next_attempt_at is None
        assert (ledger.consumer, ledger.status, ledger.last_error) == ("ledger", "ignored", "not in euros")
