"""API endpoints for events: list, show, replay, rehearse and erase."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from oncehook import Inbox
from oncehook.config.keyring import KeyRing
from oncehook.model.claim import ConsumerClaim
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.states import State
from oncehook.testing import drain
from oncehook.web.api.schemas.events import Event
from tests.support.dashboard import Site, both_databases, dashboard_of, send
from tests.support.encryption import encrypted_inbox
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_event_has_the_same_keys_as_on_the_command_line(shop: Inbox, program: httpx.AsyncClient) -> None:
    await send(shop, "evt_1")
    (event,) = (await program.get("/api/events")).json()["events"]
    assert tuple(event) == Event.__struct_fields__
    assert set(Receipt.__struct_fields__) - set(event) == {"unhandled_at", "main_id"}
    (receipt,) = await shop._runtime.store.receipts.find(Filter(), limit=1)
    assert event == receipt.as_json()


async def test_cursors_lead_to_every_event_once(shop: Inbox, program: httpx.AsyncClient) -> None:
    sent = [await send(shop, f"evt_{n}") for n in range(13)]
    receipts: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        params = {"limit": "5", "source": "stripe", "cursor": cursor}
        page: dict[str, Any] = (await program.get("/api/events", params=params)).json()
        receipts += [event["receipt"] for event in page["events"]]
        cursor = page["next"]
    assert receipts == sent[::-1]


@both_databases
async def test_odd_type_pattern_causes_no_database_error(shop: Inbox, program: httpx.AsyncClient) -> None:
    for number in range(20):
        await send(shop, f"evt_{number}", "a" * 250)
    for pattern in ("[]", "[z-a]", r"[a-\d]", "[", "[^", "(", "\\", "%", "*" * 1999, "*a" * 999):
        for path in ("/api/events", "/events"):
            response = await program.get(path, params={"type": pattern})
            assert response.status_code in (200, 422), (pattern, response.text)


async def test_payload_keeps_the_precision_of_its_numbers(shop: Inbox, program: httpx.AsyncClient) -> None:
    receipt = await send(shop, "evt_1", big=12345678901234567890123, price=1.10)
    await send(shop, "evt_1", price=2)
    await shop._runtime.reception.duplicates.drain()
    detail = await program.get(f"/api/events/{receipt}")
    assert "12345678901234567890123" in detail.text and "1.1" in detail.text
    assert [delivery["same_body"] for delivery in detail.json()["deliveries"]] == [False]
    raw = await program.get(f"/api/events/{receipt}/raw")
    assert raw.headers["content-type"] == "text/plain; charset=utf-8" and b"12345678901234567890123" in raw.content


@both_databases
async def test_one_event_is_rehearsed_replayed_and_erased(shop: Inbox, program: httpx.AsyncClient, rows: Rows) -> None:
    receipt = await send(shop, "evt_1", "charge.failed")
    early = await program.post(f"/api/events/{receipt}/replay")
    assert early.status_code == 409 and early.json()["error"]["code"] == "not_replayable"
    await drain(shop)
    rehearsal = (await program.post(f"/api/events/{receipt}/rehearse")).json()
    assert rehearsal["error"] == "Fail: card evt_1 declined" and rehearsal["statements"] == []
    assert (await program.post(f"/api/events/{receipt}/replay")).json()["replayed"] == 1
    await drain(shop)
    detail = (await program.get(f"/api/events/{receipt}")).json()
    assert len(detail["attempts_history"]) == 2 and detail["replays_history"][0]["actor"] == "token:admin"
    assert (await program.delete(f"/api/events/{receipt}/payload")).json() == {"erased": 1}
    assert (await program.get(f"/api/events/{receipt}")).json()["payload"] is None
    actions = [row[0] for row in rows("SELECT action FROM webhook_audit WHERE actor = 'token:admin' ORDER BY id")]
    assert actions == ["rehearse", "replay", "forget"]
    again = await program.delete(f"/api/events/{receipt}/payload")
    assert again.status_code == 409 and again.json()["error"]["code"] == "not_erased"


async def test_event_without_a_retry_cannot_be_retried(shop: Inbox, program: httpx.AsyncClient) -> None:
    receipt = await send(shop, "evt_1")
    response = await program.post(f"/api/events/{receipt}/retry")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "not_retrying")


async def test_bulk_replay_needs_the_count_of_a_dry_run(shop: Inbox, program: httpx.AsyncClient) -> None:
    for n in range(3):
        await send(shop, f"evt_{n}", "charge.failed")
    await drain(shop)
    dry = (await program.post("/api/replays", json={"status": "failed", "dry_run": True})).json()
    assert dry == {"matched": 3, "replayed": 3, "left": {}, "run": None}
    changed = await program.post("/api/replays", json={"status": "failed", "count": 2})
    assert (changed.status_code, changed.json()["error"]["code"]) == (409, "count_changed")
    missing = await program.post("/api/replays", json={"status": "failed"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (409, "count_missing")
    assert "matches 3 events. Send the request again with count 3." in missing.json()["error"]["message"]
    one = await program.post("/api/replays", json={"status": "failed", "search": "evt_1"})
    assert one.status_code == 202, "one event needs no count"
    run = (await program.get(f"/api/replays/{one.json()['run']}")).json()
    assert (run["actor"], run["matched"]) == ("token:admin", 1)
    assert (await program.post("/api/replays", json={})).status_code == 422


@pytest.fixture
async def encrypted(make_inbox: Callable[..., Inbox]) -> AsyncIterator[tuple[Inbox, int, Site]]:
    """An inbox with an encrypted event, its receipt, and its dashboard."""
    inbox = encrypted_inbox(make_inbox)
    async with inbox.lifespan(), dashboard_of(inbox) as site:
        yield inbox, await send(inbox, "evt_1", note="needle"), site


async def test_encrypted_event_is_shown_decrypted(encrypted: tuple[Inbox, int, Site]) -> None:
    _, receipt, site = encrypted
    async with site.program() as program:
        shown = (await program.get(f"/api/events/{receipt}")).json()
        assert shown["payload"]["note"] == "needle" and shown["unreadable"] is None
        assert b"needle" in (await program.get(f"/api/events/{receipt}/raw")).content


async def test_encrypted_event_without_its_key_is_shown_with_a_note(encrypted: tuple[Inbox, int, Site]) -> None:
    inbox, receipt, site = encrypted
    inbox._runtime.store._keys = KeyRing()
    async with site.program() as program, site.signed_in() as browser:
        shown = (await program.get(f"/api/events/{receipt}")).json()
        assert shown["payload"] is None and "the key 2026a is missing" in shown["unreadable"]
        raw = await program.get(f"/api/events/{receipt}/raw")
        assert (raw.status_code, raw.json()["error"]["code"]) == (409, "key_missing")
        page = await browser.get(f"/events/{receipt}")
        assert page.status_code == 200 and "the key 2026a is missing" in page.text
        assert (await program.post(f"/api/events/{receipt}/rehearse")).status_code == 200


async def test_search_in_encrypted_sources_has_a_note(encrypted: tuple[Inbox, int, Site]) -> None:
    _, _, site = encrypted
    async with site.program() as program, site.signed_in() as browser:
        found = (await program.get("/api/events", params={"search": "needle"})).json()
        assert found["events"] == [] and "not searched" in found["note"]
        assert (await program.get("/api/events")).json()["note"] is None
        assert "Payloads of encrypted sources are not searched" in (await browser.get("/events?search=needle")).text
        assert "Payloads of encrypted sources are not searched" in (await browser.get("/replay?search=needle")).text


@both_databases
async def test_events_are_filtered_by_consumer_and_show_the_state_of_each(
    shop: Inbox, program: httpx.AsyncClient
) -> None:
    failed = ConsumerClaim("ledger", State.FAILED, "E: no account")
    (receipt,) = await claim(shop, "evt_1", copies=(failed,))
    (row,) = (await program.get("/api/events?consumer=ledger")).json()["events"]
    assert (row["consumer"], row["status"], row["event_id"]) == ("ledger", "failed", "evt_1")
    assert (await program.get("/api/events?consumer=unknown")).json()["events"] == []
    for number in (receipt, row["receipt"]):
        detail = (await program.get(f"/api/events/{number}")).json()
        states = [(state["consumer"], state["status"], state["receipt"]) for state in detail["consumers"]]
        assert states == [("main", "received", receipt), ("ledger", "failed", row["receipt"])]
        assert detail["payload"] == {"id": "evt_1"}
    counted = await program.post("/api/replays", json={"consumer": "ledger", "dry_run": True})
    assert (counted.json()["matched"], counted.json()["replayed"]) == (1, 1)
