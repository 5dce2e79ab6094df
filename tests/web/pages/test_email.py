"""The email pages: counts, the status of a message, and suppressions."""

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.web.pages import email
from oncehook.web.pages.email import pivoted
from tests.support.dashboard import Browser, Site, both_databases, dashboard_of, next_page
from tests.support.email_inbox import send_email_events
from tests.support.email_payloads import sendgrid

pytestmark = pytest.mark.anyio
NOW = 1763200000


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    inbox.source("sendgrid", verify="none", email=True)
    async with dashboard_of(inbox) as site:
        yield site


def test_table_has_a_row_per_value_with_the_largest_or_the_newest_day_first() -> None:
    counts: list[dict[str, Any]] = [
        {"domain": "a.example", "type": "delivered", "events": 1},
        {"domain": "b.example", "type": "opened", "events": 5},
        {"domain": "a.example", "type": "opened", "events": 2},
        {"domain": None, "type": "delivered", "events": 1},
    ]
    types, rows = pivoted(counts, "domain")
    assert types == ["delivered", "opened"]
    assert [(row["name"], row["total"]) for row in rows] == [("b.example", 5), ("a.example", 3), ("", 1)]
    days = [{"day": day, "type": "sent", "events": n} for day, n in (("2026-11-14", 9), ("2026-11-15", 1))]
    assert [row["name"] for row in pivoted(days, "day")[1]] == ["2026-11-15", "2026-11-14"]


async def test_page_is_in_the_navigation_only_if_a_source_has_email(inbox: Inbox) -> None:
    async with dashboard_of(inbox) as site, site.signed_in() as browser:
        assert 'href="/email"' not in (await browser.get("/sources")).text
        inbox.source("sendgrid", verify="none", email=True)
        assert 'href="/email"' in (await browser.get("/sources")).text


async def test_message_shows_its_status_and_its_email_events(inbox: Inbox, browser: Browser) -> None:
    await send_email_events(
        inbox, sendgrid("delivered"), sendgrid("bounce", NOW + 5, reason="550 <b>no</b> such user", type="bounce")
    )
    suppressions = (await browser.get("/email/suppressions")).text
    link = re.search(r'href="(/email/message\?message=[^"]+)"', suppressions)
    assert link is not None
    page = (await browser.get(link[1])).text
    assert 'mail-bounced">bounced (hard)' in page and "550 &lt;b&gt;no&lt;/b&gt; such user" in page
    assert re.search(r'href="/events/\d+"', page)
    assert "No email events for this message" in (await browser.get("/email/message?message=nothing")).text
    assert "Enter a message id" in (await browser.get("/email/message")).text


@both_databases
async def test_suppressions_are_listed_searched_added_and_removed(inbox: Inbox, browser: Browser) -> None:
    for n in range(52):
        await inbox.email.suppress(f"user{n:02}@example.com", actor="import")
    page = (await browser.get("/email/suppressions")).text
    assert page.count("<tr>") == 51 and "user49" in page and "user50" not in page
    assert "user51@example.com" in (await browser.get(next_page(page) or "")).text
    matches = (await browser.get("/email/suppressions?search=USER07")).text
    assert "user07@example.com" in matches and "user08" not in matches
    added = await browser.submit("/email/suppress", {"address": "jane@Example.COM", "note": "asked by phone"})
    assert added.headers["location"] == "/email/suppressions?done=suppressed&search=jane%40example.com"
    assert "asked by phone" in (await browser.get(added.headers["location"])).text
    assert not await inbox.email.can_send("jane@example.com")
    wrong = await browser.submit("/email/suppress", {"address": "no address", "note": ""})
    assert wrong.status_code == 422 and "not a valid email address" in wrong.text and 'value="no address"' in wrong.text
    removed = await browser.submit("/email/allow", {"address": "jane@example.com", "note": "wants it"})
    assert removed.status_code == 303 and await inbox.email.can_send("jane@example.com")
    assert "Suppression removed." in (await browser.get(removed.headers["location"])).text


async def test_remove_button_of_an_address_with_hidden_characters_removes_that_address(
    inbox: Inbox, browser: Browser
) -> None:
    hidden = 'jane\u200b"&\u202e@example.com'
    await inbox.email.suppress(hidden, actor="import")
    page = (await browser.get("/email/suppressions")).text
    assert "jane\\u200b&#34;&amp;\\u202e@example.com</th>" in page
    field = re.search(r'type="hidden" name="address" value="([^"]*)"', page)
    assert field is not None
    await browser.submit("/email/allow", {"address": html.unescape(field[1]), "note": ""})
    assert await inbox.email.can_send(hidden)


@both_databases
async def test_counts_are_shown_as_charts_and_as_a_table(inbox: Inbox, browser: Browser) -> None:
    now = int((await inbox._runtime.store.operations.now()).timestamp())
    await send_email_events(
        inbox, sendgrid("delivered", now, category=["news", "<i>"]), sendgrid("open", now + 1, category="news")
    )
    page = (await browser.get("/email")).text
    totals = dict(re.findall(r"<h2><span>(\w+)</span><strong>([\d,]+)</strong>", page))
    assert totals == {"Delivered": "1", "Bounced": "0", "Complained": "0", "Opened": "1"} and "<rect" in page
    tags = (await browser.get("/email?by=tag&days=7")).text
    assert "&lt;i&gt;" in tags and re.search(r'<th scope="row">news</th>', tags)
    assert "example.com" in (await browser.get("/email?by=domain")).text
    assert "Events by day" in (await browser.get("/email?by=color&days=x")).text, "unknown values mean the defaults"


async def test_table_of_counts_has_a_limited_number_of_rows_and_says_how_many_it_leaves_out(
    inbox: Inbox, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(email, "MAX_ROWS", 2)
    now = int((await inbox._runtime.store.operations.now()).timestamp())
    await send_email_events(inbox, sendgrid("delivered", now, category=["a", "b", "c", "d", "e"]))
    page = (await browser.get("/email?by=tag&days=7")).text
    assert len(re.findall(r'<th scope="row">[a-e]</th>', page)) == 2 and "… and 3 more." in page
