"""The page of sources: forms that add, rotate and remove managed sources."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from tests.support.dashboard import Browser, Site, both_databases, dashboard_of
from tests.support.managed import FIRST, KEY, SECOND, delivery_status

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox(keys=[KEY])
    inbox.source("stripe", secrets=[FIRST])
    async with inbox.lifespan():
        yield inbox


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    async with dashboard_of(inbox) as site:
        yield site


@both_databases
async def test_source_is_added_rotated_and_removed_with_forms(inbox: Inbox, browser: Browser) -> None:
    added = await browser.submit("/sources/add", {"name": "acme", "provider": "stripe", "secret": FIRST})
    assert added.status_code == 303 and added.headers["location"] == "/sources?done=added#source-acme"
    assert await delivery_status(inbox, "acme", FIRST) == 202
    page = (await browser.get("/sources?done=added")).text
    assert "Source added" in page and ">Remove acme<" in page and ">Remove stripe<" not in page and FIRST not in page
    rotated = await browser.submit("/sources/acme/rotate", {"secret": SECOND, "grace": "86400"})
    assert rotated.status_code == 303
    assert [await delivery_status(inbox, "acme", secret, secret) for secret in (FIRST, SECOND)] == [202, 202]
    assert "Accept only the newest secret" in (await browser.get("/sources")).text
    assert (await browser.submit("/sources/acme/finish")).status_code == 303
    assert await delivery_status(inbox, "acme", FIRST) == 401
    assert (await browser.submit("/sources/acme/remove")).status_code == 303
    assert await delivery_status(inbox, "acme", SECOND) == 404
    assert "Removed sources" in (await browser.get("/sources")).text


async def test_source_with_tenants_needs_no_secret(inbox: Inbox, browser: Browser) -> None:
    fields = {"name": "shop", "provider": "stripe", "tenants": "on", "secret": ""}
    assert (await browser.submit("/sources/add", fields)).status_code == 303
    assert "/sources/shop/tenants" in (await browser.get("/sources")).text
    await browser.submit("/sources/shop/tenants", {"tenant": "acme", "secret": FIRST})
    assert await delivery_status(inbox, "shop/acme", FIRST) == 202


async def test_refused_change_is_explained_and_keeps_the_fields(browser: Browser) -> None:
    refused = await browser.submit("/sources/add", {"name": "acme", "provider": "strpe", "secret": FIRST})
    assert refused.status_code == 422 and "did you mean stripe" in refused.text
    assert 'value="acme"' in refused.text and FIRST not in refused.text
    assert "Enter the secret." in (await browser.submit("/sources/add", {"name": "acme", "secret": ""})).text
    taken = await browser.submit("/sources/add", {"name": "stripe", "secret": FIRST})
    assert taken.status_code == 409
    for action in ("rotate", "finish", "remove"):
        assert (await browser.submit(f"/sources/stripe/{action}", {"secret": SECOND})).status_code == 404
    await browser.submit("/sources/add", {"name": "acme", "provider": "stripe", "secret": FIRST})
    wrong = await browser.submit("/sources/acme/rotate", {"secret": SECOND, "grace": "forever"})
    assert wrong.status_code == 422


async def test_viewer_may_not_add_a_source(site: Site) -> None:
    async with site.signed_in("vera") as viewer:
        assert "Add a source" not in (await viewer.get("/sources")).text
        assert (await viewer.submit("/sources/add", {"name": "acme", "secret": FIRST})).status_code == 403
