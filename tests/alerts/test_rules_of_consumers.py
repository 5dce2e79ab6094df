"""Alert rules where a source has several consumers, on both databases."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.alerts.rules import evaluate
from oncehook.alerts.settings import AlertSettings
from oncehook.model.claim import ConsumerClaim
from oncehook.model.incident import RuleMeasurement
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.alerts import evaluate_after, make_alert_inbox, names
from tests.support.work import claim

Make = Callable[..., Inbox]


def test_numbers_of_consumers_are_added_up_and_of_their_times_the_longest_counts() -> None:
    measured = {
        "dead_letters": [RuleMeasurement("stripe", "main", number=2), RuleMeasurement("stripe", "ledger", number=3)],
        "lag": [RuleMeasurement("stripe", "main", value=40), RuleMeasurement("stripe", "ledger", value=900)],
    }
    dead, lag = evaluate(measured, AlertSettings(), {})
    assert (dead.rule.name, dead.value, lag.rule.name, lag.value) == ("dead_letters", 5, "lag", 900)
    assert lag.summary.endswith("The consumer is ledger.") and "consumer" not in dead.summary


def test_summary_names_the_consumer_if_all_dead_letters_are_of_one() -> None:
    measured = {"dead_letters": [RuleMeasurement("stripe", "ledger", number=3)]}
    (reading,) = evaluate(measured, AlertSettings(), {})
    assert reading.summary == "stripe has dead letters: 3 (threshold 0). The consumer is ledger."


def test_paused_consumer_does_not_hide_the_lag_of_another_and_has_none_itself() -> None:
    paused = RuleMeasurement("stripe", "ledger", value=9000, is_paused=True)
    both = {"lag": [paused, RuleMeasurement("stripe", "main", value=40)]}
    (reading,) = evaluate(both, AlertSettings(), {})
    assert reading.value == 40
    assert evaluate({"lag": [paused]}, AlertSettings(), {}) == []


@pytest.mark.anyio
async def test_oldest_unfinished_event_is_measured_for_each_source_and_consumer(store: Store) -> None:
    await claim(store, "evt_1", copies=(ConsumerClaim("analytics"), ConsumerClaim("ledger")))
    await store.schema.move_times_back(3600)
    await claim(store, "evt_2", copies=(ConsumerClaim("analytics"),))
    await claim(store, "evt_3", source="github", copies=(ConsumerClaim("ledger"),))
    await store.pauses.pause("", "jane", consumer="ledger")
    rows = await store.alerts.measure("oldest_unfinished", {})
    assert [(row.source, row.consumer, row.value > 3000, row.is_paused) for row in rows] == [
        ("github", "ledger", False, True),
        ("github", "main", False, False),
        ("stripe", "analytics", True, False),
        ("stripe", "ledger", True, True),
        ("stripe", "main", True, False),
    ]


@pytest.mark.anyio
async def test_consumer_that_waits_or_fails_alerts_for_its_source(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with inbox.lifespan():
        failed = ConsumerClaim("ledger", State.FAILED, "E: no account")
        await claim(inbox, "evt_1", status=State.IGNORED, copies=(ConsumerClaim("analytics"), failed))
        opened = names((await evaluate_after(inbox, "6m")).opened)
        assert opened == [("dead_letters", "stripe"), ("lag", "stripe")]


@pytest.mark.anyio
async def test_paused_consumer_has_no_lag_alert_and_a_pause_alert_after_a_day(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with inbox.lifespan():
        await claim(inbox, "evt_1", status=State.IGNORED, copies=(ConsumerClaim("analytics"),))
        await inbox._runtime.store.pauses.pause("", "jane", consumer="analytics")
        assert (await evaluate_after(inbox, "23h")).opened == []
        (opened,) = (await evaluate_after(inbox, "2h")).opened
        assert (opened.rule, opened.source) == ("paused_consumer", "analytics")
        assert "The consumer analytics has been paused for 1d 1h (threshold 1d)" in opened.summary
