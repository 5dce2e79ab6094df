"""How consumers are described and paused, without a server."""

from dataclasses import replace

import pytest

from oncehook import Inbox
from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from oncehook.web.consumers import describe_consumers, list_consumers, named_consumers, set_consumer_paused
from oncehook.web.dashboard import Dashboard
from oncehook.web.page import Context, Problem
from tests.support.dashboard import CONFIGURED, make_request
from tests.support.work import claim

pytestmark = pytest.mark.anyio


@pytest.fixture
def team_context(team: Inbox) -> Context:
    team._runtime.configuration = replace(team._runtime.configuration, dashboard=CONFIGURED)
    return Dashboard(team._runtime, "the key of this run")._guard.context


async def test_named_consumers_subscribe_have_work_or_are_paused(team: Inbox, team_context: Context) -> None:
    await claim(team, "evt_1", copies=(ConsumerClaim("removed", State.FAILED, "E: x"),))
    await team._runtime.store.pauses.pause("", "jane", consumer="forgotten")
    assert await named_consumers(team_context) == ["analytics", "forgotten", "ledger", "removed"]
    rows = await list_consumers(team_context)
    assert [row["consumer"] for row in rows] == ["main", "analytics", "forgotten", "ledger", "removed"]
    assert {row["consumer"] for row in rows if row["paused"]} == {"forgotten"}
    assert next(row for row in rows if row["consumer"] == "removed")["dead_letters"] == 1


async def test_inbox_with_one_consumer_lists_none_and_describes_main(shop: Inbox, context: Context) -> None:
    await claim(shop, "evt_1")
    assert await named_consumers(context) == [] and await list_consumers(context) == []
    (main,) = await describe_consumers(context)
    assert (main["consumer"], main["waiting"], main["seen_at"]) == ("main", 1, None)


async def test_description_has_the_patterns_by_source(team_context: Context) -> None:
    described = {row["consumer"]: row for row in await describe_consumers(team_context)}
    assert described["analytics"]["sources"] == {"stripe": ["invoice.*"]}
    assert described["ledger"]["sources"] == {"stripe": ["invoice.paid"]}
    assert described["ledger"]["seen_at"] is not None and described["ledger"]["rate"] is None


async def test_unknown_consumer_cannot_be_paused(team_context: Context) -> None:
    with pytest.raises(Problem) as raised:
        await set_consumer_paused(team_context, make_request(consumer="nobody"), paused=True)
    assert (raised.value.status, raised.value.code) == (404, "not_found")
    assert await set_consumer_paused(team_context, make_request(consumer="main"), paused=True) == "main"
