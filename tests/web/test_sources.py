"""The page of sources, over HTTP on both databases: the doctor's word, the secrets' use, pausing and resuming."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from oncehook.web import doctor
from tests.support.dashboard import Browser, Site, dashboard_of
from tests.support.events import Rows, stripe_body
from tests.web.pages.test_pages import send

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(doctor, "MAX_AGE", 0.0)
    inbox.source("calendly", secrets=["key"])
    async with dashboard_of(inbox) as site:
        yield site


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    async with site.signed_in() as browser:
        yield browser


async def test_the_doctor_says_why_a_delivery_was_refused(inbox: Inbox, site: Site, browser: Browser) -> None:
    await deliver(inbox, "stripe", stripe_body("evt_1"), secret="github-secret")
    async with asyncio.timeout(20):
        while not await inbox._runtime.store.rejections.find("stripe"):
            await asyncio.sleep(0.02)
    page = (await browser.get("/sources")).text
    assert "<strong>Fix:</strong>" in page and "secret of source github" in page and "github-secret" not in page
    async with site.program("reader") as program:
        told = {one["source"]: one for one in (await program.get("/api/sources")).json()["sources"]}
    assert told["stripe"]["last_refused"]["findings"][0]["cause"] == "other source"
    assert told["github"]["last_refused"] is None


async def refuse(inbox: Inbox, reason: str, **how: Any) -> None:
    """A refused delivery whose sample is written."""
    assert (await deliver(inbox, "stripe", stripe_body(f"evt_{reason}"), **how)).outcome[1] == reason
    async with asyncio.timeout(20):
        while not any(row.reason == reason for row in await inbox._runtime.store.rejections.find("stripe")):
            await asyncio.sleep(0.02)


async def test_the_doctors_word_stands_with_the_delivery_it_is_about(
    inbox: Inbox, site: Site, browser: Browser
) -> None:
    await refuse(inbox, "bad_signature", secret="github-secret")
    inbox._runtime.reception.stats.record_rejection("stripe", "too_large", "refused before it was read and verified")
    page = (await browser.get("/sources")).text
    of_stripe = page[page.index('id="source-stripe"') :]
    last, before = of_stripe.index("Last rejection"), of_stripe.index("Earlier rejection")
    assert last < of_stripe.index("too_large") < before < of_stripe.index("bad_signature")
    assert before < of_stripe.index("<strong>Cause:</strong>") < of_stripe.index("Signature</dt>")
    async with site.program("reader") as program:
        told = {one["source"]: one for one in (await program.get("/api/sources")).json()["sources"]}["stripe"]
    assert (told["last_refused"]["reason"], told["last_refused"]["findings"]) == ("too_large", [])
    assert told["last_examined"]["findings"][0]["cause"] == "other source"


async def test_a_secret_that_was_taken_out_too_early_is_said_with_the_refusal(
    inbox: Inbox, site: Site, browser: Browser
) -> None:
    await send(inbox, "evt_1")
    await inbox._runtime.reception.secret_uses.write()
    source = inbox._runtime.sources["stripe"]
    source.settings, removed = replace(source.settings, secrets=("whsec_new",)), source.fingerprints[0]
    source.load_secrets()
    await refuse(inbox, "bad_signature", secret="whsec_test")
    page = (await browser.get("/sources")).text
    assert "<strong>Cause:</strong>" in page and f"The secret {removed}, which verified 1 delivery" in page
    assert "add it next to the new one" in page and "whsec_test" not in page
    async with site.program("reader") as program:
        told = {one["source"]: one for one in (await program.get("/api/sources")).json()["sources"]}["stripe"]
    assert [one["secret"] for one in told["secrets_used"]] == [0, None]


async def test_notes_have_their_names_as_code(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("shopify", secrets=["x"])
    async with inbox.lifespan(), dashboard_of(inbox) as site, site.signed_in() as browser:
        page = (await browser.get("/sources")).text
    assert "`" not in page and "<code" in page[page.index("Notes about Shopify") :]


async def test_it_says_which_secret_was_used_and_what_is_not_confirmed(
    inbox: Inbox, site: Site, browser: Browser
) -> None:
    await send(inbox, "evt_1")
    await inbox._runtime.reception.secret_uses.write()
    page = (await browser.get("/sources")).text
    assert re.search(r"secrets\[0\]</code>.*?used <time[^>]*>\S+ ago</time>, 1 in total", page, re.DOTALL)
    assert "whsec_test" not in page
    assert page.count("does not confirm this signature scheme") == 1 and "unconfirmed</span>" in page
    async with site.program("reader") as program:
        told = {one["source"]: one for one in (await program.get("/api/sources")).json()["sources"]}
    assert told["stripe"]["secrets_used"][0]["verified"] == 1 and told["calendly"]["support"] == "unconfirmed"


async def test_a_source_is_paused_and_resumed_and_everybody_sees_it(
    inbox: Inbox, site: Site, browser: Browser, rows: Rows
) -> None:
    await send(inbox, "evt_1")
    paused = await browser.submit("/sources/stripe/pause")
    assert paused.headers["location"] == "/sources?done=paused#source-stripe"
    assert "Resume stripe" in (await browser.get("/sources")).text
    assert "Paused:" in (await browser.get("/")).text
    assert await inbox._runtime.store.leases.take(5, 30, "test") == []
    async with site.signed_in("vera") as viewer:
        seen = (await viewer.get("/sources")).text
        assert "by user:otto" in seen and "Resume stripe" not in seen
    async with site.program("admin") as program:
        told = {one["source"]: one["paused"] for one in (await program.get("/api/sources")).json()["sources"]}
        assert told["stripe"]["actor"] == "user:otto" and told["github"] is None
        assert (await program.get("/api/overview")).json()["paused"] == ["stripe"]
        assert (await program.post("/api/sources/stripe/resume")).json() == {"source": "stripe", "paused": False}
        assert (await program.post("/api/sources/nobody/pause")).status_code == 404
    assert "Paused:" not in (await browser.get("/")).text
    assert len(await inbox._runtime.store.leases.take(5, 30, "test")) == 1
    done = rows("SELECT actor, action FROM webhook_audit WHERE action IN ('pause', 'resume') ORDER BY id")
    assert done == [("user:otto", "pause"), ("token:admin", "resume")]
