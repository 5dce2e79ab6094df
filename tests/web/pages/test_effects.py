"""The pages of effects: the list with its filters, one effect, and replays of failed effects."""

import re
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from oncehook import Event, Fail, Inbox
from oncehook.model.effect import EffectFilter
from oncehook.testing import drain
from tests.support.dashboard import Browser, Site, both_databases, send
from tests.support.events import Rows

pytestmark = pytest.mark.anyio
ERROR = "<b>the mailbox</b> is full"


@pytest.fixture
def shop(inbox: Inbox) -> Inbox:
    """Each paid invoice requests an email, which fails, and a message, which succeeds."""

    @inbox.effect
    async def mail(effect: Any, to: str) -> None:
        raise Fail(ERROR)

    @inbox.subscribe("billing")
    async def billing(effect: Any, payload: Any) -> None: ...

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Any) -> None:
        await event.effect(f"mail:{event.id}", mail, to="jane@example.com")
        await event.publish("billing", {"invoice": event.object_id}, key=f"billing:{event.id}")

    return inbox


async def send_and_drain(inbox: Inbox, *ids: str) -> None:
    for event_id in ids:
        await send(inbox, event_id)
        await drain(inbox)


def keys(page: str) -> list[str]:
    return re.findall(r'<a class="mono" href="/effects/\d+">([^<]+)<', page)


async def test_effects_are_counted_filtered_and_escaped(shop: Inbox, browser: Browser) -> None:
    assert "No effects yet" in (await browser.get("/effects")).text
    await send_and_drain(shop, "evt_1", "evt_2", "evt_3")
    page = (await browser.get("/effects")).text
    assert keys(page) == [f"{kind}:evt_{n}" for n in (3, 2, 1) for kind in ("billing", "mail")]
    assert re.search(r'bad"><dt>Failed</dt><dd><a href="/effects\?status=failed">3<', page)
    assert "&lt;b&gt;the mailbox" in page and ERROR not in page
    assert len(keys((await browser.get("/effects?status=failed")).text)) == 3
    narrow = await browser.get("/effects?target=billing&source=stripe&key=billing:evt_2")
    assert keys(narrow.text) == ["billing:evt_2"]
    assert "No matching effects" in (await browser.get("/effects?source=github")).text
    assert (await browser.get("/effects?status=lost")).status_code == 422


async def test_one_effect_has_its_arguments_and_a_link_to_its_event(shop: Inbox, browser: Browser) -> None:
    receipt = await send(shop, "evt_1")
    await drain(shop)
    (row,) = await shop._runtime.store.effects.find(EffectFilter(key="mail:evt_1"), limit=1)
    page = (await browser.get(f"/effects/{row.id}")).text
    assert "jane@example.com" in page and f'href="/events/{receipt}"' in page and "&lt;b&gt;the mailbox" in page
    assert f'href="/effects/{row.id}"' in (await browser.get(f"/events/{receipt}")).text
    assert (await browser.get("/effects/99999")).status_code == 404
    assert (await browser.get("/effects/x")).status_code == 404


async def test_task_is_shown_with_its_queue_and_its_name(shop: Inbox, browser: Browser) -> None:
    broker = StubBroker()
    send_receipt = dramatiq.actor(broker=broker, actor_name="send_receipt")(lambda invoice: None)
    shop.tasks(broker)

    @shop.on("stripe", "invoice.voided")
    async def voided(event: Event) -> None:
        await event.enqueue(send_receipt, event.object_id)

    await send(shop, "evt_1", "invoice.voided")
    await drain(shop)
    (row,) = await shop._runtime.store.effects.find(EffectFilter(target="dramatiq:send_receipt"), limit=1)
    assert 'title="dramatiq:send_receipt"' in (await browser.get("/effects?target=dramatiq:send_receipt")).text
    assert 'task <span class="mono">dramatiq:send_receipt<' in (await browser.get(f"/effects/{row.id}")).text


async def test_failed_effect_is_replayed_and_a_completed_one_is_not(shop: Inbox, browser: Browser, rows: Rows) -> None:
    await send_and_drain(shop, "evt_1")
    (failed,) = await shop._runtime.store.effects.find(EffectFilter(status="failed"), limit=2)
    (done,) = await shop._runtime.store.effects.find(EffectFilter(status="done"), limit=2)
    replayed = await browser.submit(f"/effects/{failed.id}/replay")
    assert replayed.headers["location"] == f"/effects/{failed.id}?done=replayed"
    assert "Effect replayed." in (await browser.get(replayed.headers["location"])).text
    conflict = await browser.submit(f"/effects/{done.id}/replay")
    assert conflict.status_code == 409 and "it is done" in conflict.text
    assert rows("SELECT actor FROM webhook_audit WHERE action = 'replay effects'") == [("user:otto",)]


@both_databases
async def test_bulk_replay_needs_a_confirmed_count(shop: Inbox, browser: Browser, site: Site, rows: Rows) -> None:
    await send_and_drain(shop, "evt_1", "evt_2")
    assert "Replay 2 effects?" in (await browser.get("/effects/replay?target=mail")).text
    for fields in ({"target": "mail", "count": "1"}, {"target": "billing", "count": "0"}):
        assert (await browser.submit("/effects/replay", fields)).status_code == 409
    assert rows("SELECT count(*) FROM webhook_effects WHERE replays > 0") == [(0,)]
    done = await browser.submit("/effects/replay", {"target": "mail", "count": "2"})
    assert done.headers["location"] == "/effects?done=2"
    assert rows("SELECT count(*) FROM webhook_effects WHERE replays = 1") == [(2,)]
