"""The page of dead letters: groups of similar errors."""

import re

import pytest

from oncehook import Inbox
from oncehook.testing import deliver, drain
from tests.support.dashboard import Browser, Site, both_databases, send

pytestmark = pytest.mark.anyio


@both_databases
async def test_dead_letters_are_grouped_by_error_and_a_group_can_be_replayed(shop: Inbox, browser: Browser) -> None:
    for n in range(3):
        await send(shop, f"evt_{n}", "charge.failed")
    await deliver(shop, "stripe", b'{"type": "charge.failed"}')  # without an id
    await drain(shop)
    page = (await browser.get("/dead")).text
    assert re.findall(r'<td class="number aside"><strong>(\d+)</strong>', page) == ["3", "1"]
    assert "4 events failed permanently." in page
    link = re.search(r'href="(/replay\?[^"]*error=[^"]+)"', page)
    assert link is not None
    assert "Replay 3 events?" in (await browser.get(link[1].replace("&amp;", "&"))).text


async def test_page_without_dead_letters_explains_what_they_are(browser: Browser) -> None:
    page = (await browser.get("/dead")).text
    assert "No dead letters" in page and "when its last attempt fails" in page and "Replay all" not in page


async def test_viewer_sees_no_replay_links(shop: Inbox, site: Site) -> None:
    await send(shop, "evt_1", "charge.failed")
    await drain(shop)
    async with site.signed_in("vera") as viewer:
        page = (await viewer.get("/dead")).text
    assert "card evt_1 declined" in page and "/replay" not in page


async def test_groups_name_their_consumer_if_there_are_several(team: Inbox, team_site: Site) -> None:
    await send(team, "evt_1")
    await drain(team)
    async with team_site.signed_in() as browser:
        page = (await browser.get("/dead")).text
        link = re.search(r'href="(/replay\?[^"]*error=[^"]+)"', page)
        assert link is not None and "consumer=ledger" in link[1]
        assert "Replay 1 event?" in (await browser.get(link[1].replace("&amp;", "&"))).text
    assert '<th scope="col">Consumer</th>' in page and "/events?status=failed&amp;consumer=ledger" in page


async def test_groups_of_an_inbox_with_one_consumer_do_not_name_it(shop: Inbox, browser: Browser) -> None:
    await send(shop, "evt_1", "charge.failed")
    await drain(shop)
    assert "onsumer" not in (await browser.get("/dead")).text
