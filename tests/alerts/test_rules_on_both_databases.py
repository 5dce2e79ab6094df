"""Each rule opens an incident above its threshold and recovers it, on both databases."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest

from oncehook import Effect, Event, Fail, Inbox, RetryLater, StoreUnavailable
from oncehook.model.effect import EffectFilter
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.model.values import duration
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import advance, deliver, drain, post
from tests.support.alerts import (
    INCIDENTS,
    configured,
    evaluate_after,
    make_alert_inbox,
    names,
    send_forged,
)
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


Make = Callable[..., Inbox]


async def test_unhandled_events_alert_after_ten_minutes_and_recover_with_a_handler(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.roster.refresh()
        await advance(inbox, "9m")
        assert names((await evaluate_after(inbox)).opened) == []  # an unhandled event is not lag
        await advance(inbox, "2m")
        assert names((await evaluate_after(inbox)).opened) == [("unhandled", "stripe")]
        inbox.on("stripe", "invoice.*")(lambda event: None)
        await inbox._runtime.roster.refresh()
        (receipt,) = await drain(inbox)
        assert receipt.status is State.PROCESSED
        assert await assert_recovers_once(inbox) == [("unhandled", "stripe")]


async def test_dead_letters_above_the_threshold_alert_and_a_successful_replay_recovers(
    make_inbox: Make, rows: Rows
) -> None:
    inbox, broken = make_alert_inbox(make_inbox, dead_letters=1), True

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if broken:
            raise Fail("not today")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        assert names((await evaluate_after(inbox)).opened) == []  # one is not above the threshold of one
        await deliver(inbox, "stripe", stripe_body("evt_2"))
        await drain(inbox)
        (opened,) = (await evaluate_after(inbox)).opened
        assert (opened.rule, opened.source, opened.value, opened.threshold) == (
            "dead_letters", "stripe", 2, 1
        )  # fmt: skip
        assert opened.summary == "stripe has dead letters: 2 (threshold 1)."
        assert (await evaluate_after(inbox)).opened == []
        broken = False
        assert (
            await replay(inbox._runtime.store, Selection(filter=Filter(status="failed")), actor="the test")
        ).count == 2
        await drain(inbox)
        assert await assert_recovers_once(inbox) == [("dead_letters", "stripe")]
    assert rows(INCIDENTS) == [("dead_letters", "stripe", 1)]


async def assert_recovers_once(inbox: Inbox) -> list[tuple[str, str]]:
    """Check that incidents recover after five minutes and only once, and return them."""
    assert (await evaluate_after(inbox)).recovered == []
    assert (await evaluate_after(inbox, "4m")).recovered == []
    over = names((await evaluate_after(inbox, "2m")).recovered)
    assert (await evaluate_after(inbox, "6m")).recovered == []
    return over


async def test_lag_above_the_threshold_alerts_and_processing_the_events_recovers(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None: ...

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        assert (await evaluate_after(inbox, "4m")).opened == []
        (opened,) = (await evaluate_after(inbox, "90s")).opened
        assert opened.rule == "lag" and "of stripe is 5m 3" in opened.summary and "(threshold 5m)" in opened.summary
        await drain(inbox)
        assert await assert_recovers_once(inbox) == [("lag", "stripe")]


async def test_lag_rule_counts_events_of_a_handler_that_hangs(make_inbox: Make, rows: Rows) -> None:
    inbox = make_inbox(config=configured(lag="500ms", every="100ms"), worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    let_go = asyncio.Event()

    @inbox.on("stripe", "*")
    async def hang(event: Event) -> None:
        await let_go.wait()

    async with inbox.lifespan():
        for number in range(12):
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
        await eventually(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processing'") == [(12,)])
        assert (await inbox._runtime.store.stats.lags()) == []  # no event waits: all are leased
        await eventually(lambda: rows(INCIDENTS) == [("lag", "stripe", 0)])
        let_go.set()
    (value,) = rows("SELECT value FROM webhook_incidents")[0]
    assert value > 0.5


async def test_lag_rule_counts_an_event_that_keeps_failing(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        raise RetryLater(after=3600)

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        (opened,) = (await evaluate_after(inbox, "6m")).opened
        assert opened.rule == "lag"


async def test_lag_of_a_replayed_event_counts_from_its_replay(make_inbox: Make, rows: Rows) -> None:
    inbox = make_alert_inbox(make_inbox)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if not event.replays:
            raise Fail("not today")
        raise RetryLater(after=3600)

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        await advance(inbox, "1d")
        assert (
            await replay(inbox._runtime.store, Selection(filter=Filter(status="failed")), actor="the test")
        ).count == 1
        assert names((await evaluate_after(inbox, "4m")).opened) == []
        (lag,) = await inbox._runtime.store.stats.lags()
        assert 239 < lag.lag < 300
        await drain(inbox)  # the event is retrying, and its age still counts from the replay
        assert rows("SELECT status FROM webhook_receipts") == [("retrying",)]
        (row,) = await inbox._runtime.store.alerts.measure("oldest_unfinished", {})
        assert 239 < row.value < 300
        assert names((await evaluate_after(inbox, "2m")).opened) == [("lag", "stripe")]


async def test_lag_rule_counts_an_inline_event_only_while_its_handler_runs(make_inbox: Make) -> None:
    inbox = make_inbox(config=configured(), worker=True)
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inside, let_go = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "*")
    async def hang(event: Event) -> None:
        inside.set()
        await let_go.wait()
        raise ValueError("not now")

    async with inbox.lifespan():
        first = asyncio.create_task(deliver(inbox, "stripe", stripe_body("evt_1")))
        await asyncio.wait_for(inside.wait(), 20)
        (row,) = await inbox._runtime.store.alerts.measure("oldest_unfinished", {})
        assert row.source == "stripe" and 0 <= row.value < 60
        let_go.set()
        assert (await first).status == 500
        assert await inbox._runtime.store.alerts.measure("oldest_unfinished", {}) == []


async def test_paused_source_has_no_lag_alert_and_a_pause_alert_after_a_day(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.store.pauses.pause("stripe", "jane")
        assert (await evaluate_after(inbox, "23h")).opened == []
        (row,) = await inbox._runtime.store.alerts.measure("oldest_unfinished", {})
        assert row.value > 82000 and row.is_paused  # the gauge includes paused events
        (opened,) = (await evaluate_after(inbox, "2h")).opened
        assert opened.rule == "paused" and "stripe has been paused for 1d 1h (threshold 1d)" in opened.summary
        await inbox._runtime.store.pauses.resume("stripe", "jane")
        assert names((await evaluate_after(inbox)).opened) == [("lag", "stripe")]


async def test_pause_with_an_end_never_alerts_and_the_lag_alert_follows_its_end(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.store.pauses.pause("stripe", "jane", seconds=3 * 86400)
        assert (await evaluate_after(inbox, "2d")).opened == []
        assert names((await evaluate_after(inbox, "25h")).opened) == [
            ("lag", "stripe")
        ]  # no worker runs after the pause


async def test_rejections_of_all_processes_together_alert_and_recover(make_inbox: Make, rows: Rows) -> None:
    inbox, other = make_alert_inbox(make_inbox, rejections=4), make_alert_inbox(make_inbox, rejections=4)
    async with inbox.lifespan(), other.lifespan():
        await send_forged(inbox, 2)
        await send_forged(other, 2)
        assert (await evaluate_after(inbox)).opened == []
        await send_forged(other, 1)
        (opened,) = (await evaluate_after(inbox)).opened
        assert opened.summary == "Rejected deliveries to stripe in the last 5 minutes: 5 (threshold 4)."
        assert await recover_after_window(inbox, "5m") == [("rejections", "stripe")]
        await send_forged(inbox, 1)
        (reason,) = {row[0] for row in rows("SELECT reason FROM webhook_refusals")}
        assert reason == "bad_signature"


async def recover_after_window(inbox: Inbox, after: str) -> list[tuple[str, str]]:
    assert (await evaluate_after(inbox, after)).recovered == []
    return names((await evaluate_after(inbox, "6m")).recovered)


async def test_rejection_counts_that_could_not_be_written_are_written_with_the_next_ones(
    make_inbox: Make, monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    inbox = make_alert_inbox(make_inbox)
    async with inbox.lifespan():
        with monkeypatch.context() as patch:

            async def fails(refused: Any) -> None:
                raise StoreUnavailable("gone")

            patch.setattr(inbox._runtime.store.alerts, "note_rejections", fails)
            await send_forged(inbox, 2)
        await send_forged(inbox, 1)
        assert rows("SELECT CAST(sum(refused) AS integer) FROM webhook_refusals") == [(3,)]


VERIFY: tuple[Literal["signature", "none"], ...] = ("signature", "none")


@pytest.mark.parametrize("verify", VERIFY)
async def test_silent_source_opens_an_incident_and_a_delivery_ends_it(
    make_inbox: Make, verify: Literal["signature", "none"]
) -> None:
    inbox = make_inbox(config=configured(sources={"shop": {"silent": "2h"}}, lag="off"))
    inbox.source("shop", provider="stripe", secrets=["whsec_test"] if verify == "signature" else [], verify=verify)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        assert (await evaluate_after(inbox, "3h")).opened == []  # the source has never received an event
        for source in ("shop", "stripe"):
            await deliver(inbox, source, stripe_body("evt_1"))
        await inbox._runtime.reception.secret_uses.write()
        assert (await evaluate_after(inbox, "119m")).opened == []
        (opened,) = (await evaluate_after(inbox, "2m")).opened
        assert names([opened]) == [("silent", "shop")]
        assert "no authentic delivery for 2h 1m (threshold 2h)" in opened.summary
        await deliver(inbox, "shop", stripe_body("evt_1"))  # a duplicate counts too
        await deliver(inbox, "shop", stripe_body("evt_2"))
        await inbox._runtime.reception.secret_uses.write()
        assert await assert_recovers_once(inbox) == [("silent", "shop")]


async def test_failed_effects_alert_and_their_replay_recovers(make_inbox: Make) -> None:
    inbox, broken = make_alert_inbox(make_inbox), True

    @inbox.effect
    def send(effect: Effect) -> None:
        if broken:
            raise Fail("no such mailbox")

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await event.effect(f"send:{event.id}", send)

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        (opened,) = (await evaluate_after(inbox)).opened
        assert names([opened]) == [("effects", "stripe")] and "stripe has failed effects: 1" in opened.summary
        broken = False
        (failed,) = await inbox._runtime.store.effects.find(EffectFilter(status="failed"), limit=10)
        await inbox._runtime.store.effects.replay([failed.id], "the test")
        await drain(inbox)
        assert await assert_recovers_once(inbox) == [("effects", "stripe")]


async def test_source_that_rejects_everything_alerts_before_its_provider_stops_retrying(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox, rejections="off", lag="off")
    horizon = inbox._runtime.sources["stripe"].provider.horizon
    assert horizon == duration("3d")
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.reception.secret_uses.write()
        await advance(inbox, "2m")
        for _ in range(5):
            await send_forged(inbox)
            assert (await evaluate_after(inbox, "10h")).opened == []
        await send_forged(inbox)
        (opened,) = (await evaluate_after(inbox, "5h")).opened
        assert names([opened]) == [("refusing", "stripe")]
        assert "rejected for 2d 7h" in opened.summary and "stops retrying after 3d" in opened.summary
        await deliver(inbox, "stripe", stripe_body("evt_2"))  # the secret is correct again
        await inbox._runtime.reception.secret_uses.write()
        assert await assert_recovers_once(inbox) == [("refusing", "stripe")]


async def test_rejections_of_a_stranger_do_not_count_as_provider_retries(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox, rejections="off", lag="off")
    async with inbox.lifespan():
        await send_forged(inbox)  # a single one
        assert (await evaluate_after(inbox, "60h")).opened == []
        for number in range(8):  # forged and authentic deliveries arrive
            await send_forged(inbox, 5)
            await advance(inbox, "2m")
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
            await inbox._runtime.reception.secret_uses.write()
            assert (await evaluate_after(inbox, "10h")).opened == []


async def test_failing_inline_event_alerts_before_its_provider_stops_retrying(make_inbox: Make) -> None:
    inbox, broken = make_inbox(config=configured(dead_letters="off")), True
    inbox.source("stripe", secrets=["whsec_test"], mode="inline", max_attempts=50)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if broken:
            raise ValueError("not today")

    inbox._runtime.start_processor()
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 500
        assert (await evaluate_after(inbox, "53h")).opened == []
        (opened,) = (await evaluate_after(inbox, "2h")).opened
        assert names([opened]) == [("failing", "stripe")] and "failed at every delivery for 2d 7h" in opened.summary
        broken = False
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 200
        assert await assert_recovers_once(inbox) == [("failing", "stripe")]


async def test_rule_that_is_off_or_set_for_another_source_does_not_alert(make_inbox: Make) -> None:
    inbox = make_alert_inbox(make_inbox, lag="off", sources={"github": {"lag": "1m"}})
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await deliver(inbox, "github", b"{}", headers={"X-GitHub-Delivery": "d1", "X-GitHub-Event": "push"})
        assert names((await evaluate_after(inbox, "1h")).opened) == [("lag", "github")]


async def test_value_that_flaps_opens_one_incident(make_inbox: Make, rows: Rows) -> None:
    inbox = make_alert_inbox(make_inbox, rejections=2)
    async with inbox.lifespan():
        for _ in range(4):
            await send_forged(inbox, 3)
            await evaluate_after(inbox)
            assert (await evaluate_after(inbox, "5m")).recovered == []  # below the threshold for a short time
        assert rows(INCIDENTS) == [("rejections", "stripe", 0)]


async def test_deliveries_to_an_unknown_source_open_no_incident(make_inbox: Make, rows: Rows) -> None:
    inbox = make_alert_inbox(make_inbox, rejections=0)
    async with inbox.lifespan():
        assert (await post(inbox, "unknown", b"{}", {})).status == 404
        await inbox._runtime.reception.rejection_counts.write()
        assert rows("SELECT source, reason, refused FROM webhook_refusals") == [("unknown", "unknown_source", 1)]
        assert (await evaluate_after(inbox)).opened == []
