"""The page of sources: the doctor's findings, the use of secrets, pauses and resumes, and removed sources."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from oncehook.web import doctor
from tests.support.dashboard import Browser, Site, both_databases, dashboard_of, send
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(doctor, "MAX_AGE", 0.0)
    inbox.source("calendly", secrets=["key"])
    async with dashboard_of(inbox) as site:
        yield site


async def reject(inbox: Inbox, reason: str, **how: Any) -> None:
    """Sends a delivery that is rejected for this reason, and waits for its sample."""
    assert (await deliver(inbox, "stripe", stripe_body(f"evt_{reason}"), **how)).outcome[1] == reason

    async def is_stored() -> bool:
        return any(row.reason == reason for row in await inbox._runtime.store.rejections.find("stripe"))

    await eventually(is_stored, "the sample of the rejection is stored")


async def sources_json(site: Site) -> dict[str, Any]:
    async with site.program("reader") as program:
        return {source["source"]: source for source in (await program.get("/api/sources")).json()["sources"]}


async def test_filter_of_a_source_and_the_reason_of_an_ignored_event_are_shown(
    inbox: Inbox, browser: Browser, site: Site
) -> None:
    inbox.source("shop", provider="stripe", secrets=["whsec_test"], where={"note": {"prefix": "<b>"}})
    ignored = await deliver(inbox, "shop", stripe_body("evt_1", note="<i>"))
    page = (await browser.get("/sources")).text
    assert re.search(r"<dt>Filter</dt><dd><code>.*note.*prefix.*</code>", page) and "<b>" not in page
    assert (await sources_json(site))["shop"]["where"] == {"note": {"prefix": "<b>"}}
    event = (await browser.get(f"/events/{ignored.receipt}")).text
    assert "<dt>Reason</dt>" in event and "Last error" not in event
    assert "note is &#34;&lt;i&gt;&#34;, not text that begins with" in event


async def test_source_shows_its_url_its_secrets_and_advice_on_its_rejections(inbox: Inbox, browser: Browser) -> None:
    await send(inbox, "evt_1")
    inbox._runtime.reception.stats.record_rejection("stripe", "too_large", "the body is too large")
    page = (await browser.get("/sources")).text
    assert "/webhooks/stripe" in page and "/webhooks/github" in page
    assert "too_large" in page and "exceeds this source" in page
    assert "1 secret configured" in page and "whsec_test" not in page and "github-secret" not in page


@both_databases
async def test_rejection_is_explained_with_its_cause_and_a_fix(inbox: Inbox, site: Site, browser: Browser) -> None:
    await reject(inbox, "bad_signature", secret="github-secret")
    page = (await browser.get("/sources")).text
    assert "<strong>Cause:</strong>" in page and "<strong>Fix:</strong>" in page
    assert "source github" in page and "github-secret" not in page
    sources = await sources_json(site)
    assert sources["stripe"]["last_refused"]["findings"][0]["cause"] == "other source"
    assert sources["github"]["last_refused"] is None


async def test_findings_stay_with_the_rejection_that_they_explain(inbox: Inbox, site: Site, browser: Browser) -> None:
    await reject(inbox, "bad_signature", secret="github-secret")
    inbox._runtime.reception.stats.record_rejection("stripe", "too_large", "the body is too large")
    page = (await browser.get("/sources")).text
    card = page[page.index('id="source-stripe"') :]
    last, earlier = card.index("Last rejection"), card.index("Earlier rejection")
    assert last < card.index("too_large") < earlier < card.index("bad_signature")
    assert earlier < card.index("<strong>Cause:</strong>") < card.index("<dt>Signature</dt>")
    stripe = (await sources_json(site))["stripe"]
    assert (stripe["last_refused"]["reason"], stripe["last_refused"]["findings"]) == ("too_large", [])
    assert stripe["last_examined"]["findings"][0]["cause"] == "other source"


async def test_secret_that_was_removed_too_early_is_the_cause(inbox: Inbox, site: Site, browser: Browser) -> None:
    await send(inbox, "evt_1")
    await inbox._runtime.reception.secret_uses.write()
    source = inbox._runtime.sources["stripe"]
    source.settings, removed = replace(source.settings, secrets=("whsec_new",)), source.fingerprints[0]
    source.load_secrets()
    await reject(inbox, "bad_signature", secret="whsec_test")
    page = (await browser.get("/sources")).text
    assert removed in page[page.index("<strong>Cause:</strong>") :] and "whsec_test" not in page
    stripe = (await sources_json(site))["stripe"]
    assert [use["secret"] for use in stripe["secrets_used"]] == [0, None]


async def test_names_in_the_notes_of_a_provider_are_code(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("shopify", secrets=["x"])
    async with inbox.lifespan(), dashboard_of(inbox) as site, site.signed_in() as browser:
        page = (await browser.get("/sources")).text
    assert "`" not in page and "<code" in page[page.index("Notes about Shopify") :]


async def test_use_of_secrets_and_unconfirmed_providers_are_shown(inbox: Inbox, site: Site, browser: Browser) -> None:
    await send(inbox, "evt_1")
    await inbox._runtime.reception.secret_uses.write()
    page = (await browser.get("/sources")).text
    assert re.search(r"secrets\[0\]</code>.*?last used <time[^>]*>\S+ ago</time>, 1 in total", page, re.DOTALL)
    assert page.count("does not confirm this signature scheme") == 1 and "unconfirmed</span>" in page
    sources = await sources_json(site)
    assert sources["stripe"]["secrets_used"][0]["verified"] == 1 and sources["calendly"]["support"] == "unconfirmed"


@both_databases
async def test_pause_and_resume_are_shown_to_everyone_and_audited(
    inbox: Inbox, site: Site, browser: Browser, rows: Rows
) -> None:
    await send(inbox, "evt_1")
    paused = await browser.submit("/sources/stripe/pause")
    assert paused.headers["location"] == "/sources?done=paused#source-stripe"
    assert "Resume stripe" in (await browser.get("/sources")).text and "Paused:" in (await browser.get("/")).text
    async with site.signed_in("vera") as viewer:
        page = (await viewer.get("/sources")).text
        assert "by user:otto" in page and "Resume stripe" not in page
    resumed = await browser.submit("/sources/stripe/resume")
    assert resumed.status_code == 303 and "Paused:" not in (await browser.get("/")).text
    actions = rows("SELECT actor, action FROM webhook_audit WHERE action IN ('pause', 'resume') ORDER BY id")
    assert actions == [("user:otto", "pause"), ("user:otto", "resume")]


async def test_page_and_api_show_the_circuit_breaker_of_a_forward(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], forward="https://orders.example/hooks")
    inbox.source("github", secrets=["github-secret"])
    async with dashboard_of(inbox) as site, site.signed_in() as browser:
        page = await browser.get("/sources")
        assert "https://orders.example</code>" in page.text and "circuit open" not in page.text
        inbox._runtime.breakers["https://orders.example"].open(60.0)
        assert "circuit open" in (await browser.get("/sources")).text
        sources = await sources_json(site)
        assert sources["stripe"]["forward"] == {"origin": "https://orders.example", "circuit": "open"}
        assert sources["github"]["forward"] is None
        inbox._runtime.breakers["https://orders.example"].open(0.0)
        assert "circuit half-open" in (await browser.get("/sources")).text


@both_databases
async def test_removed_sources_are_listed_and_can_still_be_resumed(inbox: Inbox, browser: Browser) -> None:
    assert "Removed sources" not in (await browser.get("/sources")).text
    await claim(inbox, "evt_1", source="old shop")
    await inbox._runtime.store.pauses.pause("empty", "me")

    async def is_listed() -> bool:
        return "Removed sources" in (await browser.get("/sources")).text

    await eventually(is_listed, "the numbers of the page are at most a second old")
    page = (await browser.get("/sources")).text
    removed = page[page.index("Removed sources") :]
    assert re.findall(r'href="/events\?source=([^"]+)"', removed) == ["empty", "old%20shop"]
    assert "empty is paused" in removed and "old shop is paused" not in removed
    assert (await browser.submit("/sources/empty/resume")).status_code == 303
    assert "empty" not in (await browser.get("/sources")).text
