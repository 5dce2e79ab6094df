"""The pages, asked over HTTP on both databases: what they show, and what can be done on them."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Fail, Inbox
from oncehook.model.receipt import Filter
from oncehook.observability import signals
from oncehook.store.rows import Selection
from oncehook.testing import advance, deliver, post
from oncehook.web import listing
from oncehook.web.overview import Overview
from tests.support.dashboard import Browser, Site, dashboard_of
from tests.support.events import Rows, github_headers, stripe_body
from tests.support.servers import ask

pytestmark = pytest.mark.anyio
sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
def working(inbox: Inbox, rows: Rows) -> Inbox:
    """With handlers: one that writes, one that gives up."""
    rows("CREATE TABLE paid (id TEXT)")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Any, tx: Any) -> None:
        mark = "?" if inbox._runtime.settings.database.startswith("sqlite") else "$1"
        await tx.execute(f"INSERT INTO paid VALUES ({mark})", event.object_id)

    @inbox.on("stripe", "charge.failed")
    async def declined(event: Any) -> None:
        raise Fail(f"card {event.id} declined")

    return inbox


@pytest.fixture
async def site(working: Inbox) -> AsyncIterator[Site]:
    async with dashboard_of(working) as site:
        yield site


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    async with site.signed_in() as browser:
        yield browser


async def send(inbox: Inbox, event_id: str, type_: str = "invoice.paid", **more: Any) -> int:
    answer = await deliver(inbox, "stripe", stripe_body(event_id, type_, **more))
    return int(answer.json["receipt"])


async def worked_off(inbox: Inbox) -> None:
    """Have a worker do all that waits."""
    if inbox._runtime.worker is None:
        inbox._runtime.start_worker()
    async with asyncio.timeout(20):
        while await inbox._runtime.store.receipts.find(
            Filter(status="received"), limit=1
        ) or await inbox._runtime.store.receipts.find(Filter(status="processing"), limit=1):
            await asyncio.sleep(0.02)


def listed(page: str) -> list[int]:
    """The receipts of the table, in its order."""
    return [int(number) for number in re.findall(r'<td class="grows what"><a href="/events/(\d+)">', page)]


# -- overview -------------------------------------------------------------------------------------------------------


async def test_before_the_first_event_it_says_where_to_send_one(working: Inbox, browser: Browser) -> None:
    page = (await browser.get("/")).text
    assert "No events yet" in page and f"{browser.base_url}/webhooks/stripe" in page
    assert "oncehook send stripe" in page
    await send(working, "evt_1")
    await asyncio.sleep(1.05)  # what stands is asked for once a second
    assert "No events yet" not in (await browser.get("/")).text


def chosen_range(page: str) -> str:
    (name,) = re.findall(r'href="/\?range=(\w+)" aria-current="true"', page)
    return str(name)


async def test_the_overview_counts_what_arrived_came_again_was_refused_and_failed(
    working: Inbox, site: Site, browser: Browser
) -> None:
    for n in range(4):
        await send(working, f"evt_{n}")
    await send(working, "evt_0")
    await send(working, "evt_f", "charge.failed")
    await deliver(working, "stripe", stripe_body("evt_x"), secret="whsec_wrong")
    await working._runtime.reception.duplicates.drain()
    await worked_off(working)
    for over in ("15m", "1h", "24h", "7d"):
        page = (await browser.get("/", params={"range": over})).text
        totals = dict(re.findall(r"<h2><span>(\w+)</span><strong>([\d,]+)</strong>", page))
        assert totals == {"Received": "5", "Duplicate": "1", "Rejected": "1", "Failed": "1"}
    assert re.search(r"p50 [\d.]+ · p95 [\d.]+ · p99 [\d.]+ ms", page) and re.search(
        r"Dead letters</dt><dd><a href=\"/dead\">1<", page
    )


async def test_the_overview_has_the_rejections_and_latencies_of_all_processes(
    working: Inbox, make_inbox: Callable[..., Inbox]
) -> None:
    other = make_inbox()
    other.source("stripe", secrets=["whsec_test"])
    async with other.lifespan():
        for inbox, forged in ((working, 5), (other, 7)):
            await deliver(inbox, "stripe", stripe_body(f"evt_{forged}"))
            for _ in range(forged):
                await deliver(inbox, "stripe", stripe_body("evt_x"), secret="whsec_wrong")
        await other._runtime.reception.rejection_counts.write()
        await other._runtime.reception.ack_latencies.write()
        before = Overview(working._runtime)
        assert sum((await before.rates("1h"))[1]["rejected"]) == 12  # five of them are not written yet
        assert (await before.sources("1h"))[-1]["rejected"] == 12
        await working._runtime.reception.rejection_counts.write()
        await working._runtime.reception.ack_latencies.write()
        for overview in (Overview(working._runtime), Overview(other._runtime)):
            assert sum((await overview.rates("1h"))[1]["rejected"]) == 12
            assert sum((await overview.rates("15m"))[1]["rejected"]) == 12
            assert (await overview.total())["accept_seconds"] == (await Overview(working._runtime).total())[
                "accept_seconds"
            ]
        rows = ask(working._runtime.settings.database, "SELECT sum(acked) FROM webhook_acks")
        assert rows == [(2,)]
    assert sum((await Overview(working._runtime).rates("7d"))[1]["rejected"]) == 12  # the other process is gone


async def test_charts_begin_with_15_minutes_until_there_is_an_hour_to_show(working: Inbox, browser: Browser) -> None:
    await send(working, "evt_1")
    assert chosen_range((await browser.get("/")).text) == "15m"
    await advance(working, "2h")
    assert chosen_range((await browser.get("/")).text) == "1h"
    assert chosen_range((await browser.get("/", params={"range": "15m"})).text) == "15m"


async def test_buckets_that_are_over_are_not_counted_again_and_the_last_are(working: Inbox, site: Site) -> None:
    overview = Overview(working._runtime)
    await send(working, "evt_1")
    assert sum((await overview.rates("1h"))[1]["received"]) == 1
    asked: list[Any] = []
    original = working._runtime.store.stats.rates

    async def rates(since: Any, seconds: int) -> Any:
        asked.append(since)
        return await original(since, seconds)

    working._runtime.store.stats.rates = rates  # type: ignore[method-assign]
    await send(working, "evt_2")
    await asyncio.sleep(1.05)
    assert sum((await overview.rates("1h"))[1]["received"]) == 2
    assert sum((await overview.rates("1h"))[1]["received"]) == 2
    (since,) = asked  # once a second at most, and only from the last bucket on
    assert (await working._runtime.store.operations.now() - since).total_seconds() < 180


# -- events ---------------------------------------------------------------------------------------------------------


async def test_events_are_found_by_each_field_and_all_hold_together(working: Inbox, browser: Browser) -> None:
    first = await send(working, "evt_1", note="a needle")
    second = await send(working, "evt_2", "charge.failed")
    body = b'{"repository": {"full_name": "a/b"}, "needle": 1}'
    pushed = int((await post(working, "github", body, github_headers(body, "d-1"))).json["receipt"])
    for query, expected in [
        ({}, [pushed, second, first]),
        ({"source": "stripe"}, [second, first]),
        ({"type": "invoice.*"}, [first]),
        ({"type": "charge"}, [second]),
        ({"object": "in_1"}, [second, first]),
        ({"status": "received"}, [pushed, second, first]),
        ({"status": "failed"}, []),
        ({"since": "1h"}, [pushed, second, first]),
        ({"until": "1h"}, []),
        ({"search": "needle"}, [pushed, first]),
        ({"search": "needle", "source": "github"}, [pushed]),
        ({"search": "evt_1"}, [first, first]),  # by its id, and in its text
        ({"search": "nothing at all"}, []),
    ]:
        page = await browser.get("/events", params=query)
        assert (page.status_code, listed(page.text)) == (200, expected), query
    assert "No matching events" in page.text


async def test_pages_go_on_where_the_last_one_ended(working: Inbox, browser: Browser, monkeypatch: Any) -> None:
    sent = [await send(working, f"evt_{n:03}") for n in range(120)]
    for query in ("/events", "/events?source=stripe", "/events?type=invoice.*"):
        met, address = [], query
        for _ in range(4):
            page = (await browser.get(address)).text
            met += listed(page)
            more = re.search(r'rel="next" href="([^"]+)"', page)
            if more is None:
                break
            address = more[1].replace("&amp;", "&")
        assert met == sent[::-1]


@sqlite
async def test_a_page_that_looks_too_long_says_how_far_and_goes_on(
    working: Inbox, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await send(working, "evt_first", "rare.event")
    for n in range(10):
        await send(working, f"evt_{n}")
    monkeypatch.setattr(listing, "WINDOW", 4)
    monkeypatch.setattr(listing, "SECONDS", 0.0)
    met, address, pages = [], "/events?type=rare.event", 0
    while address:
        page = (await browser.get(address)).text
        met, pages = met + listed(page), pages + 1
        more = re.search(r'rel="next" href="([^"]+)"', page)
        assert more is None or "Searched back to" in page
        address = more[1].replace("&amp;", "&") if more else ""
    assert met == [first] and pages == 3


@sqlite
@pytest.mark.parametrize(
    "query",
    [
        {"since": "yesterday"},
        {"until": "5x"},
        {"status": "done"},
        {"cursor": "x"},
        {"search": "x" * 3000},
        {"type": "a\0b"},
    ],
    ids=str,
)
async def test_a_filter_that_cannot_be_meant_is_told_in_a_sentence(browser: Browser, query: dict[str, str]) -> None:
    page = await browser.get("/events", params=query)
    assert page.status_code == 422 and 'role="alert"' in page.text


# -- one event ------------------------------------------------------------------------------------------------------


async def test_an_event_is_shown_with_all_that_happened_to_it(working: Inbox, browser: Browser) -> None:
    receipt = await send(working, "evt_1", "charge.failed", amount=1.10)
    await send(working, "evt_1", "charge.failed", amount=1.10)
    await send(working, "evt_1", "charge.failed", amount=2)
    await working._runtime.reception.duplicates.drain()
    await worked_off(working)
    other = await send(working, "evt_2")
    page = (await browser.get(f"/events/{receipt}")).text
    for told in (
        "charge.failed",
        "evt_1",
        "Duplicate delivery",
        "with a different body",
        "Attempt 1: failed",
        "card evt_1 declined",
    ):
        assert told in page
    assert "Fail: card evt_1 declined" in page
    assert f'href="/events/{other}"' in page  # of the same object
    assert "whsec" not in page and "stripe-signature" not in page.lower()
    assert "oncehook send stripe charge.failed" in page and "curl -i" in page
    assert (await browser.get("/events/999999")).status_code == 404
    assert (await browser.get("/events/abc")).status_code == 404


async def test_the_raw_bytes_are_a_download_that_no_browser_interprets(working: Inbox, browser: Browser) -> None:
    body = stripe_body("evt_1", note="<script>alert(1)</script>")
    receipt = (await deliver(working, "stripe", body)).json["receipt"]
    for address in (f"/events/{receipt}/raw", f"/api/events/{receipt}/raw"):
        answer = await browser.get(address)
        assert answer.content == body
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["content-disposition"] == f'attachment; filename="event-{receipt}.txt"'
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_replay_is_one_press_recorded_and_done(working: Inbox, browser: Browser, rows: Rows) -> None:
    receipt = await send(working, "evt_1")
    await worked_off(working)
    answer = await browser.submit(f"/events/{receipt}/replay")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/events/{receipt}?done=replayed")
    await worked_off(working)
    page = (await browser.get(f"/events/{receipt}?done=replayed")).text
    assert "Replayed" in page and "user:otto" in page
    assert rows("SELECT count(*) FROM paid") == [(2,)]
    assert ("user:otto", "replay") in rows("SELECT actor, action FROM webhook_audit")


async def test_what_cannot_be_replayed_is_told(working: Inbox, browser: Browser) -> None:
    receipt = await send(working, "evt_1")
    answer = await browser.submit(f"/events/{receipt}/replay")
    assert answer.status_code == 409 and "The event was not replayed: received." in answer.text


async def test_a_rehearsal_shows_what_would_be_done_and_does_none_of_it(
    working: Inbox, browser: Browser, rows: Rows
) -> None:
    receipt = await send(working, "evt_1")
    await worked_off(working)
    answer = await browser.submit(f"/events/{receipt}/rehearse")
    assert answer.status_code == 200 and "would succeed" in answer.text
    assert re.search(r'<li class="added">\s*<code>INSERT INTO paid', answer.text)
    assert rows("SELECT count(*) FROM paid") == [(1,)]
    assert ("user:otto", "rehearse") in rows("SELECT actor, action FROM webhook_audit")


async def test_an_erased_payload_is_gone_and_the_receipt_stays(working: Inbox, browser: Browser, rows: Rows) -> None:
    receipt = await send(working, "evt_1")
    await worked_off(working)
    answer = await browser.submit(f"/events/{receipt}/erase")
    assert answer.status_code == 303
    page = (await browser.get(f"/events/{receipt}")).text
    assert "pruned or erased" in page and (await browser.get(f"/events/{receipt}/raw")).status_code == 404
    assert (await browser.submit(f"/events/{receipt}/erase")).status_code == 409
    assert ("user:otto", "forget") in rows("SELECT actor, action FROM webhook_audit")


# -- replays of many ------------------------------------------------------------------------------------------------


async def test_many_are_replayed_after_a_count_that_was_agreed_to(working: Inbox, browser: Browser, rows: Rows) -> None:
    for n in range(6):
        await send(working, f"evt_{n}", "charge.failed")
    await worked_off(working)
    shown = await browser.get("/replay?status=failed")
    assert "Replay 6 events?" in shown.text
    stale = await browser.submit("/replay", {"status": "failed", "count": "5"})
    assert stale.status_code == 409 and "has changed" in stale.text
    answer = await browser.submit("/replay", {"status": "failed", "count": "6"})
    assert answer.status_code == 303
    run = answer.headers["location"]
    async with asyncio.timeout(20):
        while "<h1>Replay complete</h1>" not in (page := (await browser.get(run)).text):
            await asyncio.sleep(0.05)
    assert "6 of 6 matching events returned to the queue" in page
    async with asyncio.timeout(20):
        while "<strong>6</strong> failed again, <strong>0</strong> still waiting" not in page:
            await asyncio.sleep(0.05)
            page = (await browser.get(run)).text
    assert "data-poll" not in page and "It continues if you leave" not in page
    assert rows("SELECT sum(replays) FROM webhook_receipts") == [(6,)]
    actions = [row[0] for row in rows("SELECT action FROM webhook_audit WHERE actor = 'user:otto' ORDER BY id")]
    assert actions == ["sign_in", "replay_started", "replay_batch", "replay_ended"]
    audit = (await browser.get("/audit")).text
    assert audit.count(">replay<") == 1 and "replay batch" not in audit and "status" in audit


async def test_another_process_can_tell_how_far_a_replay_is(working: Inbox, site: Site, rows: Rows) -> None:
    for n in range(3):
        await send(working, f"evt_{n}", "charge.failed")
    await worked_off(working)
    runs = site.dashboard.runs
    run = await runs.start(Selection(Filter(status="failed")), "me", 3)
    async with asyncio.timeout(20):
        while run.state == "running":
            await asyncio.sleep(0.02)
    runs._runs.clear()
    told = await runs.get(run.run)
    assert told is not None and (told.state, told.done.count, told.matched) == ("done", 3, 3)
    assert await runs.get("0" * 16) is None


async def test_everything_there_is_cannot_be_replayed_by_an_empty_filter(browser: Browser) -> None:
    assert (await browser.get("/replay")).status_code == 422
    assert (await browser.submit("/replay", {"count": "0"})).status_code == 422


async def test_dead_letters_are_grouped_and_replayed_by_what_they_died_of(
    working: Inbox, browser: Browser, rows: Rows
) -> None:
    for n in range(3):
        await send(working, f"evt_{n}", "charge.failed")
    await deliver(working, "stripe", b'{"type": "charge.failed"}')  # without an id
    await worked_off(working)
    page = (await browser.get("/dead")).text
    assert re.findall(r'<td class="number aside"><strong>(\d+)</strong>', page) == ["3", "1"]
    link = re.search(r'href="(/replay\?[^"]*error=[^"]+)"', page)
    assert link is not None
    shown = (await browser.get(link[1].replace("&amp;", "&"))).text
    assert "Replay 3 events?" in shown


@sqlite
async def test_without_dead_letters_the_page_says_so(browser: Browser) -> None:
    assert "No dead letters" in (await browser.get("/dead")).text


# -- sources and the audit ------------------------------------------------------------------------------------------


async def test_sources_tell_their_address_their_last_event_and_what_was_refused(
    working: Inbox, browser: Browser
) -> None:
    await send(working, "evt_1")
    await deliver(working, "stripe", stripe_body("evt_x"), secret="whsec_wrong")
    page = (await browser.get("/sources")).text
    assert "/webhooks/stripe" in page and "/webhooks/github" in page
    assert "bad_signature" in page and "Compare the secret" in page
    assert "1 secret configured" in page and "whsec_test" not in page and "github-secret" not in page


# -- live -----------------------------------------------------------------------------------------------------------


async def test_a_stream_says_when_something_has_changed_and_ends_with_the_service(working: Inbox) -> None:
    async with dashboard_of(working) as site, site.signed_in() as browser:
        async with browser.stream("GET", "/live", timeout=20) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            pieces = answer.aiter_bytes()
            assert b": connected" in await anext(pieces)
            assert (await anext(pieces)).startswith(b"id: ")
            await send(working, "evt_1")
            assert b"event: changed" in await anext(pieces)
            site.dashboard.close()
            assert [piece async for piece in pieces] == []
        assert site.dashboard.live.listeners == 0


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_database_that_does_not_answer_is_told_and_logged(
    working: Inbox, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(signals, "emit", lambda line, **_: lines.append(line))
    await working._runtime.store.close()
    page = await browser.get("/events/1")
    assert page.status_code == 503 and "not available" in page.text and "dashboard_database_unavailable" in lines
    assert (await browser.get("/api/events/1")).json()["error"]["code"] == "unavailable"
    await working._runtime.store.open()
