"""The page of one event: its timeline, its payload, and the actions on it."""

import re
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.testing import drain
from tests.support.dashboard import Browser, Site, both_databases, send
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


@both_databases
async def test_timeline_has_duplicates_attempts_and_errors(shop: Inbox, browser: Browser) -> None:
    receipt = await send(shop, "evt_1", "charge.failed", amount=1.10)
    await send(shop, "evt_1", "charge.failed", amount=1.10)
    await send(shop, "evt_1", "charge.failed", amount=2)
    await shop._runtime.reception.duplicates.drain()
    await drain(shop)
    other = await send(shop, "evt_2")
    page = (await browser.get(f"/events/{receipt}")).text
    for text in ("charge.failed", "evt_1", "Duplicate delivery", "with a different body", "Attempt 1: failed"):
        assert text in page, f"the page must show {text!r}"
    assert "Fail: card evt_1 declined" in page
    assert f'href="/events/{other}"' in page, "events about the same object are linked"
    assert "whsec" not in page and "stripe-signature" not in page.lower()
    assert "oncehook send stripe charge.failed" in page and "curl -i" in page
    assert (await browser.get("/events/999999")).status_code == 404


async def test_text_of_an_event_is_escaped(shop: Inbox, browser: Browser) -> None:
    script = "<script>alert(1)</script>"
    receipt = await send(shop, f"evt_{script}", f"charge.{script}", note=script)
    page = (await browser.get(f"/events/{receipt}")).text
    assert script not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3, "the id, the type and the payload are shown"


@both_databases
async def test_replay_button_runs_the_handler_again_and_is_audited(shop: Inbox, browser: Browser, rows: Rows) -> None:
    receipt = await send(shop, "evt_1")
    early = await browser.submit(f"/events/{receipt}/replay")
    assert early.status_code == 409 and "The event was not replayed: received." in early.text
    await drain(shop)
    response = await browser.submit(f"/events/{receipt}/replay")
    assert (response.status_code, response.headers["location"]) == (303, f"/events/{receipt}?done=replayed")
    await drain(shop)
    page = (await browser.get(f"/events/{receipt}?done=replayed")).text
    assert "Event replayed." in page and "user:otto" in page
    assert rows("SELECT count(*) FROM paid") == [(2,)]
    assert ("user:otto", "replay") in rows("SELECT actor, action FROM webhook_audit")


@both_databases
async def test_rehearsal_shows_the_statements_and_keeps_no_change(shop: Inbox, browser: Browser, rows: Rows) -> None:
    receipt = await send(shop, "evt_1")
    await drain(shop)
    response = await browser.submit(f"/events/{receipt}/rehearse")
    assert response.status_code == 200 and "would succeed" in response.text
    assert re.search(r'<li class="added">\s*<code>INSERT INTO paid', response.text)
    assert rows("SELECT count(*) FROM paid") == [(1,)]
    assert ("user:otto", "rehearse") in rows("SELECT actor, action FROM webhook_audit")


async def test_rehearsal_of_a_failing_handler_shows_the_error(shop: Inbox, browser: Browser) -> None:
    receipt = await send(shop, "evt_1", "charge.failed")
    page = (await browser.submit(f"/events/{receipt}/rehearse")).text
    assert "would fail" in page and "card evt_1 declined" in page


async def test_erased_payload_is_gone_and_the_receipt_is_kept(shop: Inbox, browser: Browser, rows: Rows) -> None:
    receipt = await send(shop, "evt_1")
    await drain(shop)
    erased = await browser.submit(f"/events/{receipt}/erase")
    assert erased.status_code == 303 and "Payload erased." in (await browser.get(erased.headers["location"])).text
    page = (await browser.get(f"/events/{receipt}")).text
    assert "pruned or erased" in page and (await browser.get(f"/events/{receipt}/raw")).status_code == 404
    assert (await browser.submit(f"/events/{receipt}/erase")).status_code == 409
    assert ("user:otto", "forget") in rows("SELECT actor, action FROM webhook_audit")


@both_databases
async def test_entities_stale_events_and_skipped_effects_are_shown(inbox: Inbox, browser: Browser, site: Site) -> None:
    @inbox.subscribe("billing")
    async def billing(effect: Any, payload: Any) -> None: ...

    @inbox.on("stripe", "invoice.updated")
    async def updated(event: Any, tx: Any) -> None:
        await event.advance("invoice", event.object_id, state=event["state"], version=7)
        await event.publish("billing", {}, key="billing:once")

    new = await send(inbox, "evt_new", "invoice.updated", created=1763200009, state="<b>paid</b>")
    await drain(inbox)
    old = await send(inbox, "evt_old", "invoice.updated", state="open")
    await drain(inbox)
    newest, stale = [(await browser.get(f"/events/{receipt}")).text for receipt in (new, old)]
    assert "&lt;b&gt;paid&lt;/b&gt;" in newest and "this event" in newest and "Stale" not in newest
    assert "Stale: a newer event was handled before" in stale and "Effect skipped" in stale
    assert f'href="/events/{new}">evt_new</a>' in stale
    rehearsed = (await browser.submit(f"/events/{old}/rehearse")).text
    assert "already recorded" in rehearsed and "stale: <code>invoice:in_1</code> has a newer event" in rehearsed
    async with site.program("reader") as program:
        detail = (await program.get(f"/api/events/{old}")).json()
    (entity,) = detail["entities"]
    assert {**entity, "updated_at": None} == {
        "kind": "invoice", "id": "in_1", "state": "<b>paid</b>", "at": "2025-11-15T09:46:49.000000Z", "version": 7,
        "is_terminal": False, "event_id": "evt_new", "receipt": new, "updated_at": None,
    }  # fmt: skip
    assert [row["reason"] for row in detail["noops"]] == ["stale", "effect"] and detail["effects"] == []


@both_databases
async def test_event_with_three_consumers_has_a_card_for_each(team: Inbox, team_site: Site, rows: Rows) -> None:
    receipt = await send(team, "evt_1")
    await drain(team)
    ((ledger,),) = rows("SELECT id FROM webhook_receipts WHERE consumer = 'ledger'")
    async with team_site.signed_in() as browser:
        page = (await browser.get(f"/events/{receipt}")).text
        cards = re.findall(r'<section class="card consumer.*?</section>', page, re.DOTALL)
        assert [re.findall(r'id="consumer-(\w+)"|state-(\w+)', card) for card in cards] == [
            [("main", ""), ("", "processed")], [("analytics", ""), ("", "retrying")], [("ledger", ""), ("", "failed")],
        ]  # fmt: skip
        assert "Next attempt" in cards[1] and "the warehouse is busy" in cards[1] and "Retry now" in cards[1]
        assert "Fail: no account" in cards[2] and f'action="/events/{ledger}/replay"' in cards[2]
        assert "Timeline of main" in page and "Attempt 1: processed" in page and "Attempt 1: failed" not in page
        other = (await browser.get(f"/events/{ledger}")).text
        assert "Timeline of ledger" in other and "Attempt 1: failed" in other and "evt_1" in other
        replayed = await browser.submit(f"/events/{ledger}/replay")
        assert replayed.headers["location"] == f"/events/{ledger}?done=replayed"
    states = "SELECT consumer, status, replays FROM webhook_receipts ORDER BY id"
    assert rows(states) == [("main", "processed", 0), ("analytics", "retrying", 0), ("ledger", "received", 1)]


async def test_viewer_sees_the_states_of_the_consumers_and_no_buttons(team: Inbox, team_site: Site) -> None:
    receipt = await send(team, "evt_1")
    await drain(team)
    async with team_site.signed_in("vera") as viewer:
        page = (await viewer.get(f"/events/{receipt}")).text
    assert page.count('class="card consumer') == 3 and "/replay" not in page and "/retry" not in page


async def test_waiting_event_of_a_paused_consumer_says_so(team: Inbox, team_site: Site) -> None:
    receipt = await send(team, "evt_1")
    await team._runtime.store.pauses.pause("", "jane", consumer="ledger")
    async with team_site.signed_in() as browser:
        page = (await browser.get(f"/events/{receipt}")).text
    assert page.count("The consumer is <a href=") == 1 and "/consumers#consumer-ledger" in page


async def test_event_with_one_consumer_has_no_cards(shop: Inbox, browser: Browser) -> None:
    receipt = await send(shop, "evt_1")
    assert "onsumer" not in (await browser.get(f"/events/{receipt}")).text
