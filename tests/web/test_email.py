"""The pages of email, over HTTP on both databases: a message, suppressions and counters."""

import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.email.suppressions import Suppression, SuppressionChange
from oncehook.testing import post
from tests.support.dashboard import Browser, Site, dashboard_of
from tests.support.email_payloads import sendgrid
from tests.support.events import Rows
from tests.web.pages.test_pages import worked_off

pytestmark = pytest.mark.anyio
NOW = 1763200000


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    inbox.source("sendgrid", verify="none", email=True)
    async with dashboard_of(inbox) as site:
        yield site


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    async with site.signed_in() as browser:
        yield browser


async def send(inbox: Inbox, *events: dict[str, Any]) -> None:
    await post(inbox, "sendgrid", json.dumps(events).encode(), {"content-type": "application/json"})
    await worked_off(inbox)


async def recent(inbox: Inbox) -> int:
    return int((await inbox._runtime.store.operations.now()).timestamp())


async def test_it_is_in_the_navigation_only_where_a_source_has_it(inbox: Inbox) -> None:
    async with dashboard_of(inbox) as site, site.signed_in() as browser:
        assert 'href="/email"' not in (await browser.get("/sources")).text
        inbox.source("sendgrid", verify="none", email=True)
        assert 'href="/email"' in (await browser.get("/sources")).text


async def test_a_message_is_looked_up_with_the_facts_behind_it(inbox: Inbox, site: Site, browser: Browser) -> None:
    await send(
        inbox, sendgrid("delivered"), sendgrid("bounce", NOW + 5, reason="550 <b>no</b> such user", type="bounce")
    )
    async with site.program("reader") as program:
        (fact, *_) = (await program.get("/api/email/counts", params={"by": "type"})).json()["counts"]
        assert fact["events"] == 1
        message = (await inbox._runtime.store.email.query("email_addresses", {"after": "", "limit": 1}, Suppression))[
            0
        ].address
        (row,) = (await program.get("/api/email/suppressed", params={"address": message})).json()["suppressions"]
        told = (await program.get("/api/email/status", params={"message": row["message_id"]})).json()
        assert [one["type"] for one in told["events"]] == ["delivered", "bounced"]
        assert told["statuses"][0]["status"] == "bounced"
        assert (await program.get("/api/email/status", params={"message": "nothing"})).status_code == 404
        assert (await program.get("/api/email/suppressed", params={"address": "a@b.c, d@e.f"})).status_code == 422
        assert (await program.get("/api/email/status")).status_code == 422
    page = (await browser.get("/email/message", params={"message": row["message_id"]})).text
    assert 'mail-bounced">bounced (hard)' in page and "550 &lt;b&gt;no&lt;/b&gt; such user" in page
    assert re.search(r'href="/events/\d+"', page) and message in page
    assert "No email events for this message" in (await browser.get("/email/message?message=nothing")).text


async def test_suppressions_are_added_lifted_searched_paged_and_audited(
    inbox: Inbox, site: Site, browser: Browser, rows: Rows
) -> None:
    for n in range(52):
        await inbox.email.suppress(f"user{n:02}@example.com", actor="import")
    page = (await browser.get("/email/suppressions")).text
    assert page.count("<tr>") == 51 and "user49" in page and "user50" not in page
    more = re.search(r'rel="next" href="([^"]+)"', page)
    assert more is not None
    assert "user51@example.com" in (await browser.get(more[1].replace("&amp;", "&"))).text
    found = (await browser.get("/email/suppressions?search=USER07")).text
    assert "user07@example.com" in found and "user08" not in found
    added = await browser.submit("/email/suppress", {"address": "jane@Example.COM", "note": "asked by phone"})
    assert added.headers["location"] == "/email/suppressions?done=suppressed&search=jane%40example.com"
    assert "asked by phone" in (await browser.get(added.headers["location"])).text
    assert not await inbox.email.can_send("jane@example.com")
    wrong = await browser.submit("/email/suppress", {"address": "no address", "note": ""})
    assert wrong.status_code == 422 and "not a valid email address" in wrong.text
    assert (await browser.submit("/email/suppress", {"address": "a@b.example", "note": "\0"})).status_code == 422
    assert (
        await browser.submit("/email/allow", {"address": "jane@example.com", "note": "wants it"})
    ).status_code == 303
    assert await inbox.email.can_send("jane@example.com")
    async with site.program("admin") as program:
        row = (await program.post("/api/email/suppress", json={"address": "joe@example.com", "note": "n"})).json()
        assert row["reason"] == "manual" and row["note"] == "n" and row["actor"] == "token:admin"
        assert (await program.post("/api/email/allow", json={"address": "joe@example.com"})).json()["since"] is None
        assert (await program.post("/api/email/suppress", json={"address": "joe"})).status_code == 422
        first = (await program.get("/api/email/suppressed", params={"limit": 50})).json()
        rest = (await program.get("/api/email/suppressed", params={"cursor": first["next"]})).json()
        assert len(first["suppressions"]) == 50 and len(rest["suppressions"]) == 2 and rest["next"] is None
    done = rows("SELECT actor, action FROM webhook_audit WHERE actor <> 'import' AND action <> 'sign_in' ORDER BY id")
    assert done == [(who, what) for who in ("user:otto", "token:admin") for what in ("suppress", "allow")]


async def test_the_audit_of_many_addresses_is_short(inbox: Inbox, browser: Browser) -> None:
    await inbox.email.change([SuppressionChange(f"user{n}@example.com") for n in range(50)], actor="import")
    page = (await browser.get("/audit")).text
    assert page.count("sha256:") == 3 and "and 47 more" in page


async def test_the_button_of_an_address_that_hides_something_lifts_that_address(inbox: Inbox, browser: Browser) -> None:
    hidden = 'jane\u200b"&\u202e@example.com'
    await inbox.email.suppress(hidden, actor="import")
    page = (await browser.get("/email/suppressions")).text
    assert "jane\\u200b&#34;&amp;\\u202e@example.com</th>" in page
    sent = re.search(r'type="hidden" name="address" value="([^"]*)"', page)
    assert sent is not None
    await browser.submit("/email/allow", {"address": html.unescape(sent[1]), "note": ""})
    assert await inbox.email.can_send(hidden)


async def test_counters_are_a_chart_and_a_table(inbox: Inbox, site: Site, browser: Browser) -> None:
    now = await recent(inbox)
    await send(inbox, sendgrid("delivered", now, category=["news", "<i>"]), sendgrid("open", now + 1, category="news"))
    page = (await browser.get("/email")).text
    totals = dict(re.findall(r"<h2><span>(\w+)</span><strong>([\d,]+)</strong>", page))
    assert totals == {"Delivered": "1", "Bounced": "0", "Complained": "0", "Opened": "1"} and "<rect" in page
    tags = (await browser.get("/email?by=tag&days=7")).text
    assert "&lt;i&gt;" in tags and re.search(r'<th scope="row">news</th>', tags)
    assert "example.com" in (await browser.get("/email?by=domain")).text
    async with site.program("reader") as program:
        counts = (await program.get("/api/email/counts", params={"by": "tag,type", "since": "1d"})).json()["counts"]
        assert {(row["tag"], row["type"], row["events"]) for row in counts} == {
            ("news", "delivered", 1), ("<i>", "delivered", 1), ("news", "opened", 1),
        }  # fmt: skip
        assert (await program.get("/api/email/counts", params={"by": "colour"})).status_code == 422
