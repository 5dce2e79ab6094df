"""The overview page, and the getting-started page before the first event."""

import re
from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.model.patterns import Handled
from oncehook.testing import deliver, drain
from tests.support.alerts import evaluate_after, make_alert_inbox
from tests.support.aws import Moto
from tests.support.dashboard import Browser, Site, both_databases, dashboard_of, send
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually
from tests.support.work_queue import WorkQueue

pytestmark = pytest.mark.anyio


async def test_before_the_first_event_the_page_shows_where_to_send_one(shop: Inbox, browser: Browser) -> None:
    page = (await browser.get("/")).text
    assert "No events yet" in page and f"{browser.base_url}/webhooks/stripe" in page
    assert "oncehook send stripe" in page


async def test_inbox_without_sources_shows_how_to_add_one(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    async with inbox.lifespan(), dashboard_of(inbox) as site, site.signed_in() as browser:
        page = (await browser.get("/")).text
    assert "Add a source" in page and "oncehook init stripe" in page


@both_databases
async def test_page_shows_totals_latency_percentiles_and_dead_letters(shop: Inbox, browser: Browser) -> None:
    for n in range(4):
        await send(shop, f"evt_{n}")
    await send(shop, "evt_0")
    await send(shop, "evt_f", "charge.failed")
    await deliver(shop, "stripe", stripe_body("evt_x"), secret="whsec_wrong")
    await shop._runtime.reception.duplicates.drain()
    await drain(shop)
    for name in ("15m", "7d"):
        page = (await browser.get("/", params={"range": name})).text
        totals = dict(re.findall(r"<h2><span>(\w+)</span><strong>([\d,]+)</strong>", page))
        assert totals == {"Received": "5", "Duplicates": "1", "Rejected": "1", "Failed": "1"}
        assert re.search(rf'href="/\?range={name}" aria-current="true"', page)
    assert "Ack latency (p95)" in page and re.search(r"p50 [\d.]+ · p95 [\d.]+ · p99 [\d.]+ ms", page)
    assert re.search(r"Dead letters</dt><dd><a href=\"/dead\">1<", page)


async def test_page_shows_the_queue_of_workers(make_inbox: Callable[..., Inbox], aws: Moto) -> None:
    queue = WorkQueue(aws)
    inbox = make_inbox(queue=f"sqs:{queue.url}")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan(), dashboard_of(inbox) as site, site.signed_in() as browser:
        await send(inbox, "evt_1")
        await eventually(lambda: queue.count() == 1, "the message is sent")
        page = (await browser.get("/")).text
    assert f"{queue.url.rpartition('/')[2]} has 1 waiting messages, and 0 in flight." in page


async def test_page_starts_with_15_minutes_while_there_is_less_than_an_hour(shop: Inbox, browser: Browser) -> None:
    await send(shop, "evt_1")
    assert 'href="/?range=15m" aria-current="true"' in (await browser.get("/")).text


async def test_paused_sources_and_the_backlog_are_shown(shop: Inbox, browser: Browser) -> None:
    await send(shop, "evt_1")
    await shop._runtime.store.pauses.pause("stripe", "me")
    page = (await browser.get("/")).text
    assert "<strong>Paused:</strong>" in page and "accepted but not handled" in page
    assert re.search(r"Backlog</dt><dd>1</dd><dd class=\"quiet\">events not finished<", page)


# -- incidents ------------------------------------------------------------------------------------------------------


@both_databases
async def test_open_incidents_are_shown_with_their_values_and_advice(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with dashboard_of(inbox) as site, site.signed_in("vera") as browser:
        await send(inbox, "evt_1")
        assert "Open incidents" not in (await browser.get("/")).text
        before = await inbox._runtime.store.stats.change_token()
        await deliver(inbox, "stripe", b'{"type": "invoice.paid"}')  # an event without an id becomes a dead letter
        await evaluate_after(inbox)
        assert await inbox._runtime.store.stats.change_token() != before, "open pages must be notified"
        page = (await browser.get("/")).text
    assert "Open incidents" in page and "Dead letters of stripe: 1 now</strong></a>, worst 1 (threshold 0)" in page
    assert '<a href="/dead"><strong>' in page and ">oncehook dead</code>" in page


async def test_events_without_a_handler_are_reported_once(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with dashboard_of(inbox) as site, site.signed_in("vera") as browser:
        await send(inbox, "evt_1")
        rows("UPDATE webhook_receipts SET unhandled_at = '2026-02-01T00:00:00.000000Z'")
        assert "No running process handles their types." in (await browser.get("/")).text
        await evaluate_after(inbox)
        page = (await browser.get("/")).text
    assert "Open incidents" in page and 'href="/events?status=unhandled' in page
    assert "No running process handles their types." not in page, "the incident replaces the notice"


@both_databases
async def test_consumers_have_a_table_with_their_work(team: Inbox, team_site: Site) -> None:
    await send(team, "evt_1")
    await drain(team)
    await team._runtime.store.pauses.pause("", "jane", consumer="analytics")
    async with team_site.signed_in() as browser:
        page = (await browser.get("/")).text
    table = page[page.index("<h2>Consumers</h2>") :]
    names = re.findall(r'<td class="first"><a href="/events\?consumer=(\w+)"', table)
    assert names == ["main", "analytics", "ledger"]
    assert table.count(">paused</a>") == 1 and "Paused consumers:" in page
    assert "/events?status=failed&amp;consumer=ledger" in table
    totals = dict(re.findall(r"<h2><span>(\w+)</span><strong>([\d,]+)</strong>", page))
    assert totals == {"Received": "1", "Duplicates": "0", "Rejected": "0", "Failed": "2"}


async def test_inbox_with_one_consumer_has_no_table_of_consumers(shop: Inbox, browser: Browser) -> None:
    await send(shop, "evt_1")
    assert "onsumer" not in (await browser.get("/")).text


@both_databases
async def test_live_processes_of_all_hosts_are_listed_with_the_tasks_they_lead(shop: Inbox, browser: Browser) -> None:
    await send(shop, "evt_1")
    handled = {"main": Handled((("stripe", "*"),))}
    leadership = await shop._runtime.store.leadership.take("prune", 60.0)
    assert leadership is not None
    await shop._runtime.store.roster.register("host1:7:aaaaaa", handled)
    await shop._runtime.store.roster.register(leadership.leader, handled)
    page = (await browser.get("/")).text
    assert "<h2>Processes</h2>" in page and "host1:7:aaaaaa" in page
    (own,) = re.findall(rf"<tr><td[^>]*>{re.escape(leadership.leader)}</td>(.*)</tr>", page)
    assert own.endswith("<td>prune</td>")
