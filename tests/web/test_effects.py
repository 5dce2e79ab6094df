"""The page of effects, over HTTP on both databases: what it shows, and another try for what has failed."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncehook import Fail, Inbox
from oncehook.model.effect import EffectFilter
from oncehook.web import effects
from tests.support.dashboard import Browser, Site, dashboard_of
from tests.support.events import Rows
from tests.web.pages.test_pages import send, worked_off

pytestmark = pytest.mark.anyio
BROKEN = "<b>the mailbox</b> is full"


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    """Each paid invoice asks for a mail, which fails, and a message, which is done."""

    @inbox.effect
    async def mail(effect: Any, to: str) -> None:
        raise Fail(BROKEN)

    @inbox.subscribe("billing")
    async def billing(effect: Any, payload: Any) -> None: ...

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Any) -> None:
        await event.effect(f"mail:{event.id}", mail, to="jane@example.com")
        await event.publish("billing", {"invoice": event.object_id}, key=f"billing:{event.id}")

    async with dashboard_of(inbox) as site:
        yield site


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    async with site.signed_in() as browser:
        yield browser


async def performed(inbox: Inbox, *ids: str) -> None:
    for name in ids:
        await send(inbox, name)
        await worked_off(inbox)
    await worked_off(inbox)
    async with asyncio.timeout(20):
        while {row.status for row in await inbox._runtime.store.effects.find(EffectFilter(), limit=1000)} - {
            "done",
            "failed",
        }:
            await asyncio.sleep(0.02)


def keys(page: str) -> list[str]:
    return re.findall(r'<a class="mono" href="/effects/\d+">([^<]+)<', page)


async def test_effects_are_counted_filtered_and_paged(
    inbox: Inbox, site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = (await browser.get("/effects")).text
    assert "No effects yet" in empty
    await performed(inbox, "evt_1", "evt_2", "evt_3")
    page = (await browser.get("/effects")).text
    assert keys(page) == [f"{kind}:evt_{n}" for n in (3, 2, 1) for kind in ("billing", "mail")]
    assert re.search(r'bad"><dt>Failed</dt><dd><a href="/effects\?status=failed">3<', page)
    assert "&lt;b&gt;the mailbox" in page and BROKEN not in page
    assert len(keys((await browser.get("/effects?status=failed")).text)) == 3
    assert keys((await browser.get("/effects?target=billing&source=stripe&key=billing:evt_2")).text) == [
        "billing:evt_2"
    ]
    assert keys((await browser.get("/effects?source=github")).text) == []
    assert (await browser.get("/effects?status=lost")).status_code == 422
    monkeypatch.setattr(effects, "WINDOW", 2)
    async with site.program("reader") as program:
        met, cursor = [], ""
        while cursor is not None:
            answer = (await program.get("/api/effects", params={"target": "mail", "limit": 1, "cursor": cursor})).json()
            met += [one["key"] for one in answer["effects"]]
            cursor = answer["next"]
        assert met == ["mail:evt_3", "mail:evt_2", "mail:evt_1"]
        assert answer["counts"] == {"waiting": 0, "performing": 0, "retrying": 0, "done": 3, "failed": 3}


async def test_one_effect_is_whole_and_leads_to_its_event(inbox: Inbox, browser: Browser) -> None:
    receipt = await send(inbox, "evt_1")
    await performed(inbox)
    (row,) = await inbox._runtime.store.effects.find(EffectFilter(key="mail:evt_1"), limit=1)
    page = (await browser.get(f"/effects/{row.id}")).text
    assert "jane@example.com" in page and f'href="/events/{receipt}"' in page and "&lt;b&gt;the mailbox" in page
    assert f'href="/effects/{row.id}"' in (await browser.get(f"/events/{receipt}")).text
    assert (await browser.get("/effects/99999")).status_code == 404
    assert (await browser.get("/effects/x")).status_code == 404


async def test_an_event_says_what_is_known_of_its_object_and_what_it_did_not_get(
    inbox: Inbox, browser: Browser, site: Site
) -> None:
    @inbox.on("stripe", "invoice.updated")
    async def updated(event: Any, tx: Any) -> None:
        await event.advance("invoice", event.object_id, state=event["state"], version=7)
        await event.advance("other", "in_2", version=1)
        await event.publish("billing", {}, key="billing:once")

    new = await send(inbox, "evt_new", "invoice.updated", created=1763200009, state="<b>paid</b>")
    await worked_off(inbox)
    old = await send(inbox, "evt_old", "invoice.updated", state="open")
    await worked_off(inbox)
    page, late = [(await browser.get(f"/events/{receipt}")).text for receipt in (new, old)]
    assert "&lt;b&gt;paid&lt;/b&gt;" in page and "this event" in page and "Stale" not in page
    assert "Stale: a newer event was handled before" in late and "Effect skipped" in late
    assert f'href="/events/{new}">evt_new</a>' in late
    rehearsed = (await browser.submit(f"/events/{old}/rehearse")).text
    assert "already recorded" in rehearsed and "stale: <code>invoice:in_1</code> has a newer event" in rehearsed
    async with site.program("reader") as program:
        told = (await program.get(f"/api/events/{old}")).json()
    (entity,) = told["entities"]
    assert {**entity, "updated_at": None} == {
        "kind": "invoice", "id": "in_1", "state": "<b>paid</b>", "at": "2025-11-15T09:46:49.000000Z", "version": 7,
        "is_terminal": False, "event_id": "evt_new", "receipt": new, "updated_at": None,
    }  # fmt: skip
    assert [row["reason"] for row in told["noops"]] == ["stale", "stale", "effect"] and told["effects"] == []


async def test_a_failed_effect_is_tried_again_and_a_done_one_is_not(
    inbox: Inbox, browser: Browser, site: Site, rows: Rows
) -> None:
    await performed(inbox, "evt_1")
    (failed,) = await inbox._runtime.store.effects.find(EffectFilter(status="failed"), limit=2)
    (done,) = await inbox._runtime.store.effects.find(EffectFilter(status="done"), limit=2)
    assert (await browser.submit(f"/effects/{failed.id}/replay")).headers["location"].endswith("?done=replayed")
    await performed(inbox)
    refused = await browser.submit(f"/effects/{done.id}/replay")
    assert refused.status_code == 409 and "it is done" in refused.text
    async with site.program("admin") as program:
        assert (await program.post(f"/api/effects/{failed.id}/replay")).json() == {"replayed": 1, "left": 0}
        assert (await program.post(f"/api/effects/{done.id}/replay")).status_code == 409
    audited = rows("SELECT actor FROM webhook_audit WHERE action = 'replay effects' ORDER BY id")
    assert audited == [("user:otto",), ("token:admin",)]


async def test_the_failed_of_a_filter_are_replayed_as_often_as_was_agreed_to(
    inbox: Inbox, browser: Browser, site: Site, rows: Rows
) -> None:
    await performed(inbox, "evt_1", "evt_2")
    asked = (await browser.get("/effects/replay?target=mail")).text
    assert "Replay 2 effects?" in asked
    assert (await browser.submit("/effects/replay", {"target": "mail", "count": "1"})).status_code == 409
    assert (await browser.submit("/effects/replay", {"target": "billing", "count": "0"})).status_code == 409
    assert rows("SELECT count(*) FROM webhook_effects WHERE replays > 0") == [(0,)]
    done = await browser.submit("/effects/replay", {"target": "mail", "count": "2"})
    assert done.headers["location"] == "/effects?done=2"
    await performed(inbox)
    async with site.program("admin") as program:
        dry = await program.post("/api/effects/replay", json={"source": "stripe", "dry_run": True})
        assert dry.json() == {"replayed": 2, "left": 0}
        assert (await program.post("/api/effects/replay", json={"source": "stripe"})).status_code == 409
        assert (await program.post("/api/effects/replay", json={"source": "stripe", "count": 2})).json()[
            "replayed"
        ] == 2
    assert rows("SELECT count(*) FROM webhook_effects WHERE replays = 2") == [(2,)]
