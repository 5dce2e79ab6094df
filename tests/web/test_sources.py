"""What the dashboard and the API show of a source, its rejections, and its pauses."""

import pytest

from oncehook import Inbox
from oncehook.web.page import Context, Problem
from oncehook.web.sources import describe_source, last_rejections, set_paused
from tests.support.dashboard import both_databases, make_request, send
from tests.support.events import Rows

pytestmark = pytest.mark.anyio
SAMPLE = {
    "rejected_at": "2020-01-01T00:00:00.000000Z",
    "reason": "bad_signature",
    "detail": "no secret matches",
    "findings": [{"cause": "other source", "shows": "…", "remedy": "…"}],
}


async def test_description_has_the_settings_and_no_secret(context: Context) -> None:
    properties = describe_source(context, "stripe")
    assert (properties["provider"], properties["mode"], properties["is_verified"]) == ("stripe", "queued", True)
    assert properties["secrets"] == 1 and properties["types"] is None
    assert properties["where"] is None
    assert "whsec_test" not in str(properties)


async def test_sample_is_the_last_rejection_of_a_process_that_rejected_nothing(context: Context) -> None:
    last, examined = last_rejections(context, "stripe", SAMPLE)
    assert last is not None and (last["at"], last["reason"]) == (SAMPLE["rejected_at"], "bad_signature")
    assert last["findings"] == SAMPLE["findings"] and examined is None
    assert last_rejections(context, "stripe", None) == (None, None)


async def test_findings_apply_to_a_later_rejection_with_the_same_reason(context: Context) -> None:
    context.runtime.reception.stats.record_rejection("stripe", "bad_signature", "no secret matches")
    last, examined = last_rejections(context, "stripe", SAMPLE)
    assert last is not None and last["at"] > SAMPLE["rejected_at"]
    assert last["findings"] == SAMPLE["findings"] and examined is None


async def test_later_rejection_for_another_reason_is_shown_without_the_findings(context: Context) -> None:
    context.runtime.reception.stats.record_rejection("stripe", "too_large", "the body is too large")
    last, examined = last_rejections(context, "stripe", SAMPLE)
    assert last is not None and (last["reason"], last["findings"]) == ("too_large", [])
    assert examined is not None and examined["findings"] == SAMPLE["findings"]


@both_databases
async def test_pause_stops_leases_until_the_source_is_resumed(shop: Inbox, context: Context, rows: Rows) -> None:
    await send(shop, "evt_1")
    request = make_request("user:otto", source="stripe")
    assert await set_paused(context, request, paused=True, reason="maintenance") == "stripe"
    assert await shop._runtime.store.leases.take(5, 30, "test") == []
    (pause,) = (await context.overview.snapshot())["paused"].values()
    assert (pause.actor, pause.reason) == ("user:otto", "maintenance")
    await set_paused(context, request, paused=False)
    assert len(await shop._runtime.store.leases.take(5, 30, "test")) == 1
    actions = rows("SELECT actor, action FROM webhook_audit ORDER BY id")
    assert actions == [("user:otto", "pause"), ("user:otto", "resume")]


async def test_unknown_source_cannot_be_paused(context: Context) -> None:
    with pytest.raises(Problem, match="Source not found"):
        await set_paused(context, make_request(source="unknown"), paused=True)
