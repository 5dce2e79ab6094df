"""The page of sources, over HTTP on both databases: the doctor's word, the secrets' use, pausing and resuming."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from oncehook.web import doctor
from tests.events import Rows, stripe_body
from tests.test_web_pages import send
from tests.web import Browser, Site, dashboard_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(doctor, "FRESH", 0.0)
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
        while not await inbox.store.rejections("stripe"):
            await asyncio.sleep(0.02)
    page = (await browser.get("/sources")).text
    assert "other source" in page and "secret of source github" in page and "github-secret" not in page
    async with site.program("reader") as program:
        told = {one["source"]: one for one in (await program.get("/api/sources")).json()["sources"]}
    assert told["stripe"]["last_refused"]["findings"][0]["cause"] == "other source"
    assert told["github"]["last_refused"] is None


async def test_it_says_which_secret_was_used_and_what_is_not_confirmed(
    inbox: Inbox, site: Site, browser: Browser
) -> None:
    await send(inbox, "evt_1")
    await inbox.secrets.write()
    page = (await browser.get("/sources")).text
    assert re.search(r"secrets\[0\]</code>.*?used <time[^>]*>\S+ ago</time>, 1 in all", page, re.DOTALL)
    assert "whsec_test" not in page
    assert page.count("is not confirmed") == 1 and "not confirmed</span>" in page
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
    assert await inbox.store.lease(5, 30, "test") == []
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
    assert len(await inbox.store.lease(5, 30, "test")) == 1
    done = rows("SELECT actor, action FROM webhook_audit WHERE action IN ('pause', 'resume') ORDER BY id")
    assert done == [("user:otto", "pause"), ("token:admin", "resume")]
