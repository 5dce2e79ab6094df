"""The page of managed tenants: search, paging, and each form."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from oncehook.web.pages import tenants
from tests.support.dashboard import Browser, Site, both_databases, dashboard_of
from tests.support.managed import FIRST, KEY, SECOND, delivery_status

pytestmark = pytest.mark.anyio

PAGE = "/sources/stripe/tenants"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox(keys=[KEY])
    inbox.source("stripe", tenants=True)
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        yield inbox


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    async with dashboard_of(inbox) as site:
        yield site


@both_databases
async def test_tenant_is_added_rotated_and_removed_with_forms(inbox: Inbox, browser: Browser) -> None:
    assert "Tenants of stripe" in (await browser.get("/sources")).text
    added = await browser.submit(PAGE, {"tenant": "acme", "secret": FIRST})
    assert added.status_code == 303 and await delivery_status(inbox, "stripe/acme", FIRST) == 202
    page = (await browser.get(added.headers["location"])).text
    assert "Tenant added" in page and ">acme<" in page and "whsec" not in page
    rotated = await browser.submit(f"{PAGE}/acme/rotate", {"secret": SECOND, "grace": "3600"})
    assert rotated.status_code == 303
    assert [await delivery_status(inbox, "stripe/acme", secret, secret) for secret in (FIRST, SECOND)] == [202, 202]
    assert "Accept only the newest" in (await browser.get(PAGE)).text
    assert (await browser.submit(f"{PAGE}/acme/finish")).status_code == 303
    assert await delivery_status(inbox, "stripe/acme", FIRST) == 401
    assert (await browser.submit(f"{PAGE}/acme/remove")).status_code == 303
    assert await delivery_status(inbox, "stripe/acme", SECOND) == 404
    assert "No tenants yet" in (await browser.get(PAGE)).text


async def test_tenants_are_searched_and_paged(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "LIMIT", 2)
    for name in ("a1", "a2", "a3", "b1"):
        await browser.submit(PAGE, {"tenant": name, "secret": FIRST})
    first = (await browser.get(PAGE, params={"search": "a"})).text
    assert ">a1</a>" in first and ">a2</a>" in first and ">a3</a>" not in first and "search=a&amp;after=a2" in first
    second = (await browser.get(PAGE, params={"search": "a", "after": "a2"})).text
    assert ">a3</a>" in second and ">b1</a>" not in second and 'rel="next"' not in second
    assert 'rel="next"' not in (await browser.get(PAGE, params={"after": "a2"})).text, "a full page may be the last"
    assert "No tenant begins with this" in (await browser.get(PAGE, params={"search": "zzz"})).text


async def test_refused_change_is_explained_and_keeps_the_name(browser: Browser) -> None:
    refused = await browser.submit(PAGE, {"tenant": "a b", "secret": FIRST})
    assert refused.status_code == 422 and 'value="a b"' in refused.text and FIRST not in refused.text
    assert "Enter the secret." in (await browser.submit(PAGE, {"tenant": "acme", "secret": " "})).text
    for action in ("rotate", "finish", "remove"):
        unknown = await browser.submit(f"{PAGE}/nope/{action}", {"secret": FIRST})
        assert unknown.status_code == 404 and "no managed tenant nope" in unknown.text


async def test_source_without_managed_tenants_has_no_page(browser: Browser) -> None:
    assert (await browser.get("/sources/nope/tenants")).status_code == 404
    assert (await browser.get("/sources/github/tenants")).status_code == 422


async def test_viewer_sees_the_tenants_and_no_form(site: Site, browser: Browser) -> None:
    await browser.submit(PAGE, {"tenant": "acme", "secret": FIRST})
    async with site.signed_in("vera") as viewer:
        page = (await viewer.get(PAGE)).text
        assert "acme" in page and "Add a tenant" not in page and "Rotate" not in page
        assert (await viewer.submit(PAGE, {"tenant": "b", "secret": FIRST})).status_code == 403
