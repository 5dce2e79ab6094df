"""The audit page: who did what and when."""

import pytest

from oncehook import Inbox
from oncehook.email.suppressions import SuppressionChange
from tests.support.dashboard import Browser, Site, next_page

pytestmark = pytest.mark.anyio


async def test_entries_show_actor_action_and_detail(shop: Inbox, browser: Browser) -> None:
    await shop._runtime.store.operations.audit("cli:jane", "replay", {"receipts": [7], "note": "<b>"})
    page = (await browser.get("/audit")).text
    assert "cli:jane" in page and 'href="/events/7"' in page and "&lt;b&gt;" in page
    assert "sign in" in page and "user:otto" in page, "signing in is recorded too"


async def test_entry_with_many_values_is_short(inbox: Inbox, browser: Browser) -> None:
    await inbox.email.change([SuppressionChange(f"user{n}@example.com") for n in range(50)], actor="import")
    page = (await browser.get("/audit")).text
    assert page.count("sha256:") == 3 and "and 47 more" in page


async def test_older_entries_are_on_the_next_page(shop: Inbox, browser: Browser) -> None:
    for n in range(60):
        await shop._runtime.store.operations.audit("me", "test", {"number": f"n{n}n"})
    page = (await browser.get("/audit")).text
    older = next_page(page)
    assert "n59n" in page and "n5n" not in page and older is not None
    assert "n5n" in (await browser.get(older)).text


async def test_viewer_may_read_the_audit_log(site: Site) -> None:
    async with site.signed_in("vera") as viewer:
        assert "Audit log" in (await viewer.get("/audit")).text
