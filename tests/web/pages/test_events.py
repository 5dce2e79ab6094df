"""The list of events with its filters and pages, and bulk replays."""

import re

import pytest

from oncehook import Inbox
from oncehook.model.receipt import Filter
from oncehook.store.rows import Selection
from oncehook.testing import drain
from oncehook.web import listing
from tests.support.dashboard import Browser, Site, both_databases, next_page, send
from tests.support.events import Rows
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def listed(page: str) -> list[int]:
    """The receipts in the tables of the page."""
    return [int(number) for number in re.findall(r'<td class="grows what"><a href="/events/(\d+)">', page)]


async def test_filter_fields_narrow_the_list_and_a_search_also_finds_ids(shop: Inbox, browser: Browser) -> None:
    first, second = await send(shop, "evt_1"), await send(shop, "evt_2", "charge.failed")
    assert listed((await browser.get("/events")).text) == [second, first]
    assert listed((await browser.get("/events", params={"type": "invoice.*", "source": "stripe"})).text) == [first]
    page = (await browser.get("/events", params={"search": "evt_1"})).text
    assert "Matching id" in page and listed(page) == [first, first], "once by its id, once by its text"
    assert "No matching events" in (await browser.get("/events", params={"search": "nothing at all"})).text


async def test_older_events_are_on_the_next_page(shop: Inbox, browser: Browser) -> None:
    sent = [await send(shop, f"evt_{n:03}") for n in range(60)]
    for path in ("/events", "/events?type=invoice.*"):
        page = (await browser.get(path)).text
        older = next_page(page)
        assert older is not None
        assert listed(page) + listed((await browser.get(older)).text) == sent[::-1]


async def test_page_that_ran_out_of_time_says_how_far_it_searched(
    shop: Inbox, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(shop, "evt_first", "rare.event")
    for n in range(5):
        await send(shop, f"evt_{n}")
    monkeypatch.setattr(listing, "WINDOW", 4)
    monkeypatch.setattr(listing, "SECONDS", 0.0)
    page = (await browser.get("/events?type=rare.event")).text
    assert "No matches so far" in page and "Searched back to" in page and "Search further back" in page
    assert len(listed((await browser.get(next_page(page) or "")).text)) == 1


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
async def test_invalid_filter_is_explained_on_the_page(browser: Browser, query: dict[str, str]) -> None:
    page = await browser.get("/events", params=query)
    assert page.status_code == 422 and 'role="alert"' in page.text


# -- bulk replays ---------------------------------------------------------------------------------------------------


@both_databases
async def test_bulk_replay_needs_a_confirmed_count_and_shows_its_progress(
    shop: Inbox, browser: Browser, rows: Rows
) -> None:
    for n in range(6):
        await send(shop, f"evt_{n}", "charge.failed")
    await drain(shop)
    assert "Replay 6 events?" in (await browser.get("/replay?status=failed")).text
    changed = await browser.submit("/replay", {"status": "failed", "count": "5"})
    assert changed.status_code == 409 and "The number of matching events has changed." in changed.text
    assert (await browser.submit("/replay", {"status": "failed", "count": "6", "rate": "x"})).status_code == 422
    started = await browser.submit("/replay", {"status": "failed", "count": "6"})
    assert started.status_code == 303
    run = started.headers["location"]

    async def run_page() -> str:
        return (await browser.get(run)).text

    async def is_complete() -> bool:
        return "<h1>Replay complete</h1>" in await run_page()

    await eventually(is_complete, "the replay is complete")
    await drain(shop)
    page = await run_page()
    assert "6 of 6 matching events returned to the queue" in page
    assert "<strong>6</strong> failed again, <strong>0</strong> still waiting" in page
    assert "data-poll" not in page and "It continues if you leave" not in page
    assert rows("SELECT sum(replays) FROM webhook_receipts") == [(6,)]
    actions = [row[0] for row in rows("SELECT action FROM webhook_audit WHERE actor = 'user:otto' ORDER BY id")]
    assert actions == ["sign_in", "replay_started", "replay_batch", "replay_ended"]
    audit = (await browser.get("/audit")).text
    assert audit.count(">replay<") == 1 and "replay batch" not in audit and "status" in audit


async def test_progress_is_known_to_processes_that_did_not_start_the_replay(shop: Inbox, site: Site) -> None:
    for n in range(3):
        await send(shop, f"evt_{n}", "charge.failed")
    await drain(shop)
    runs = site.dashboard.runs
    run = await runs.start(Selection(Filter(status="failed")), "me", 3)
    await eventually(lambda: run.state != "running", "the replay ends")
    runs._runs.clear()  # as in another process
    stored = await runs.get(run.run)
    assert stored is not None and (stored.state, stored.done.count, stored.matched) == ("done", 3, 3)
    async with site.signed_in() as browser:
        assert (await browser.get(f"/replays/{'0' * 16}")).status_code == 404


async def test_empty_filter_cannot_replay_every_event(browser: Browser) -> None:
    assert (await browser.get("/replay")).status_code == 422
    assert (await browser.submit("/replay", {"count": "0"})).status_code == 422


async def test_list_has_a_column_and_a_filter_for_consumers_if_there_are_several(team: Inbox, team_site: Site) -> None:
    await send(team, "evt_1")
    async with team_site.signed_in() as browser:
        page = (await browser.get("/events")).text
        of_ledger = (await browser.get("/events?consumer=ledger")).text
    assert page.count('class="grows what"') == 3 and '<th scope="col">Consumer</th>' in page
    assert [f"<option>{name}</option>" in page for name in ("main", "analytics", "ledger")] == [True] * 3
    assert of_ledger.count('class="grows what"') == 1 and "<option selected>ledger</option>" in of_ledger


async def test_list_of_an_inbox_with_one_consumer_has_no_column_for_it(shop: Inbox, browser: Browser) -> None:
    await send(shop, "evt_1")
    assert "onsumer" not in (await browser.get("/events")).text
