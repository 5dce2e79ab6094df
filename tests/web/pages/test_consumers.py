"""The page of consumers: their subscriptions and work, pauses and resumes."""

import pytest

from oncehook import Inbox
from oncehook.testing import drain
from tests.support.dashboard import Browser, Site, both_databases, send
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


@both_databases
async def test_page_shows_the_subscriptions_and_the_work_of_each_consumer(team: Inbox, team_site: Site) -> None:
    await send(team, "evt_1")
    await drain(team)
    async with team_site.signed_in() as browser:
        page = (await browser.get("/consumers")).text
    main, analytics, ledger = page.split('<section class="card" id="consumer-')[1:]
    assert main.startswith("main") and analytics.startswith("analytics") and ledger.startswith("ledger")
    assert "<code>invoice.*</code>" in analytics and "<code>invoice.paid</code>" in ledger
    assert "/events?status=failed&amp;consumer=ledger" in ledger and "Replay its dead letters" in ledger
    assert "Replay its dead letters" not in analytics
    assert 'href="/consumers" aria-current="page"' in page


@both_databases
async def test_consumer_is_paused_and_resumed_and_others_continue(team: Inbox, team_site: Site, rows: Rows) -> None:
    await send(team, "evt_1")
    async with team_site.signed_in() as browser:
        paused = await browser.submit("/consumers/ledger/pause")
        assert paused.headers["location"] == "/consumers?done=paused#consumer-ledger"
        page = (await browser.get("/consumers?done=paused")).text
        assert "Consumer paused." in page and "by user:otto" in page and "Resume ledger" in page
        await drain(team)
        states = "SELECT consumer, status FROM webhook_receipts ORDER BY id"
        assert rows(states) == [("main", "processed"), ("analytics", "retrying"), ("ledger", "received")]
        await browser.submit("/consumers/ledger/resume")
        assert "Resume ledger" not in (await browser.get("/consumers")).text
        await drain(team)
        assert rows(states)[-1] == ("ledger", "failed")
        assert (await browser.submit("/consumers/nobody/pause")).status_code == 404
    audited = rows("SELECT actor, action FROM webhook_audit WHERE action <> 'sign_in' ORDER BY id")
    assert audited == [("user:otto", "pause"), ("user:otto", "resume")]


async def test_viewer_cannot_pause_a_consumer(team_site: Site) -> None:
    async with team_site.signed_in("vera") as viewer:
        assert "Pause ledger" not in (await viewer.get("/consumers")).text
        assert (await viewer.submit("/consumers/ledger/pause")).status_code == 403


async def test_inbox_with_one_consumer_does_not_list_the_page(browser: Browser) -> None:
    assert 'href="/consumers"' not in (await browser.get("/events")).text
    assert (await browser.get("/consumers")).status_code == 200
