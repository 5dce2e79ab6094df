"""Rules fire and recover; an incident is told once by however many processes, and again only if none could be sure."""

import asyncio
import importlib
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Effect, Event, Fail, Inbox, RetryLater, StoreUnavailable
from oncehook.alerts import monitor
from oncehook.alerts.rules import RULES, format_duration
from oncehook.model.effect import EffectFilter
from oncehook.model.incident import SettledAlert, TargetLease
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.model.values import duration
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import advance, deliver, drain, post
from tests.support.alerts import SECRET, configured, look, names
from tests.support.events import Rows, stripe_body
from tests.support.http_target import Receiver, receiving, said
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

Make = Callable[..., Inbox]
INCIDENTS = "SELECT rule, source, recovered_at IS NOT NULL FROM webhook_incidents ORDER BY id"
ALERTS = "SELECT target, word, status, attempts FROM webhook_alerts ORDER BY id"


def make(make_inbox: Make, **alerts: Any) -> Inbox:
    inbox = make_inbox(config=configured(**alerts))
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def refuse(inbox: Inbox, times: int = 1, source: str = "stripe") -> None:
    """So many deliveries by a secret that is not ours, counted in the database."""
    for _ in range(times):
        assert (await deliver(inbox, source, stripe_body("evt_forged"), secret="whsec_another")).status == 401
    await inbox._runtime.reception.rejection_counts.write()


# -- rules ----------------------------------------------------------------------------------------------------------


async def test_events_that_no_process_handles_fire_after_ten_minutes_and_end_with_a_handler(make_inbox: Make) -> None:
    inbox = make(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.roster.refresh()
        await advance(inbox, "9m")
        assert names((await look(inbox)).opened) == []  # and the event is no lag: no worker is to blame
        await advance(inbox, "2m")
        assert names((await look(inbox)).opened) == [("unhandled", "stripe")]
        inbox.on("stripe", "invoice.*")(lambda event: None)
        await inbox._runtime.roster.refresh()
        (receipt,) = await drain(inbox)
        assert receipt.status is State.PROCESSED
        assert await recovered(inbox) == [("unhandled", "stripe")]


async def test_dead_letters_above_the_threshold_fire_and_a_replay_that_works_recovers(
    make_inbox: Make, rows: Rows
) -> None:
    inbox, broken = make(make_inbox, dead_letters=1), True

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if broken:
            raise Fail("not today")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        assert names((await look(inbox)).opened) == []  # one is not above one
        await deliver(inbox, "stripe", stripe_body("evt_2"))
        await drain(inbox)
        (opened,) = (await look(inbox)).opened
        assert (opened.rule, opened.source, opened.value, opened.threshold) == (
            "dead_letters", "stripe", 2, 1
        )  # fmt: skip
        assert opened.summary == "stripe has dead letters: 2 (limit 1)."
        assert (await look(inbox)).opened == []
        broken = False
        assert (
            await replay(inbox._runtime.store, Selection(filter=Filter(status="failed")), actor="the test")
        ).count == 2
        await drain(inbox)
        assert await recovered(inbox) == [("dead_letters", "stripe")]
    assert rows(INCIDENTS) == [("dead_letters", "stripe", 1)]


async def recovered(inbox: Inbox) -> list[tuple[str, str]]:
    """What is over: not at once, and then only once."""
    assert (await look(inbox)).recovered == []
    assert (await look(inbox, "4m")).recovered == []
    over = names((await look(inbox, "2m")).recovered)
    assert (await look(inbox, "6m")).recovered == []
    return over


async def test_lag_above_the_threshold_fires_and_working_it_off_recovers(make_inbox: Make) -> None:
    inbox = make(make_inbox)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None: ...

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        assert (await look(inbox, "4m")).opened == []
        (opened,) = (await look(inbox, "90s")).opened
        assert opened.rule == "lag" and "of stripe is 5m 30s old (limit 5m)" in opened.summary
        await drain(inbox)
        assert await recovered(inbox) == [("lag", "stripe")]


async def test_a_hung_handler_is_seen_within_the_lag(make_inbox: Make, rows: Rows) -> None:
    inbox = make_inbox(config=configured(lag="3s", every="500ms"), worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    let_go = asyncio.Event()

    @inbox.on("stripe", "*")
    async def hang(event: Event) -> None:
        await let_go.wait()

    async with inbox.lifespan():
        for number in range(12):
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
        await eventually(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processing'") == [(12,)])
        assert (await inbox._runtime.store.stats.lags()) == {}  # nothing waits: the workers hold it all
        await eventually(lambda: rows(INCIDENTS) == [("lag", "stripe", 0)])
        let_go.set()
    (value,) = rows("SELECT value FROM webhook_incidents")[0]
    assert value > 3


async def test_an_event_that_fails_again_and_again_is_seen_within_the_lag(make_inbox: Make) -> None:
    inbox = make(make_inbox)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        raise RetryLater(3600)

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        (opened,) = (await look(inbox, "6m")).opened
        assert opened.rule == "lag"


async def test_a_replayed_event_is_as_old_as_its_replay(make_inbox: Make, rows: Rows) -> None:
    inbox = make(make_inbox)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if not event.replays:
            raise Fail("not today")
        raise RetryLater(3600)

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        await advance(inbox, "1d")
        assert (
            await replay(inbox._runtime.store, Selection(filter=Filter(status="failed")), actor="the test")
        ).count == 1
        assert names((await look(inbox, "4m")).opened) == []
        lags = await inbox._runtime.store.stats.lags()
        assert 239 < lags["stripe"] < 300
        await drain(inbox)  # it is retrying now, and still as old as its replay
        assert rows("SELECT status FROM webhook_receipts") == [("retrying",)]
        (row,) = await inbox._runtime.store.alerts.measure("oldest_unfinished", {})
        assert 239 < row.value < 300
        assert names((await look(inbox, "2m")).opened) == [("lag", "stripe")]


async def test_an_inline_event_counts_only_while_its_handler_runs(make_inbox: Make) -> None:
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


async def test_a_paused_source_has_no_lag_alert_and_one_of_its_own_after_a_day(make_inbox: Make) -> None:
    inbox = make(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.store.pauses.pause("stripe", "jane")
        assert (await look(inbox, "23h")).opened == []
        (row,) = await inbox._runtime.store.alerts.measure("oldest_unfinished", {})
        assert row.value > 82000 and row.is_paused  # the gauge tells it all the same
        (opened,) = (await look(inbox, "2h")).opened
        assert opened.rule == "paused" and "stripe has been paused for 1d 1h (limit 1d)" in opened.summary
        await inbox._runtime.store.pauses.resume("stripe", "jane")
        assert names((await look(inbox)).opened) == [("lag", "stripe")]


async def test_a_pause_that_ends_by_itself_is_not_forgotten_and_its_end_needs_no_worker(make_inbox: Make) -> None:
    inbox = make(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.store.pauses.pause("stripe", "jane", seconds=3 * 86400)
        assert (await look(inbox, "2d")).opened == []
        assert names((await look(inbox, "25h")).opened) == [("lag", "stripe")]  # nobody works, and nobody wants that


async def test_a_spike_of_refusals_in_all_processes_together_fires_and_passes(make_inbox: Make, rows: Rows) -> None:
    inbox, other = make(make_inbox, rejections=4), make(make_inbox, rejections=4)
    async with inbox.lifespan(), other.lifespan():
        await refuse(inbox, 2)
        await refuse(other, 2)
        assert (await look(inbox)).opened == []
        await refuse(other, 1)
        (opened,) = (await look(inbox)).opened
        assert opened.summary == "Rejected deliveries to stripe in the last 5 minutes: 5 (limit 4)."
        assert await recovered_after(inbox, "5m") == [("rejections", "stripe")]
        await refuse(inbox, 1)
        (reason,) = {row[0] for row in rows("SELECT reason FROM webhook_refusals")}
        assert reason == "bad_signature"


async def recovered_after(inbox: Inbox, after: str) -> list[tuple[str, str]]:
    assert (await look(inbox, after)).recovered == []
    return names((await look(inbox, "6m")).recovered)


async def test_counts_of_refusals_that_could_not_be_written_are_written_with_the_next(
    make_inbox: Make, monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    inbox = make(make_inbox)
    async with inbox.lifespan():
        with monkeypatch.context() as patch:

            async def fails(refused: Any) -> None:
                raise StoreUnavailable("gone")

            patch.setattr(inbox._runtime.store.alerts, "note_rejections", fails)
            await refuse(inbox, 2)
        await refuse(inbox, 1)
        assert rows("SELECT CAST(sum(refused) AS integer) FROM webhook_refusals") == [(3,)]


@pytest.mark.parametrize("verify", ["signature", "none"])
async def test_a_source_gone_silent_fires_and_one_delivery_recovers(make_inbox: Make, verify: str) -> None:
    inbox = make_inbox(config=configured(sources={"shop": {"silent": "2h"}}, lag="off"))
    inbox.source("shop", provider="stripe", secrets=["whsec_test"] if verify == "signature" else [], verify=verify)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        assert (await look(inbox, "3h")).opened == []  # it has never said anything
        for source in ("shop", "stripe"):
            await deliver(inbox, source, stripe_body("evt_1"))
        await inbox._runtime.reception.secret_uses.write()
        assert (await look(inbox, "119m")).opened == []
        (opened,) = (await look(inbox, "2m")).opened
        assert names([opened]) == [("silent", "shop")]
        assert "no authentic delivery for 2h 1m (limit 2h)" in opened.summary
        await deliver(inbox, "shop", stripe_body("evt_1"))  # a duplicate is a sign of life too
        await deliver(inbox, "shop", stripe_body("evt_2"))
        await inbox._runtime.reception.secret_uses.write()
        assert await recovered(inbox) == [("silent", "shop")]


async def test_failed_effects_fire_and_those_that_are_replayed_recover(make_inbox: Make) -> None:
    inbox, broken = make(make_inbox), True

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
        (opened,) = (await look(inbox)).opened
        assert names([opened]) == [("effects", "stripe")] and "stripe has failed effects: 1" in opened.summary
        broken = False
        (failed,) = await inbox._runtime.store.effects.find(EffectFilter(status="failed"), limit=10)
        await inbox._runtime.store.effects.replay([failed.id], "the test")
        await drain(inbox)
        assert await recovered(inbox) == [("effects", "stripe")]


async def test_a_source_that_refuses_everything_fires_before_its_provider_stops_retrying(make_inbox: Make) -> None:
    inbox = make(make_inbox, rejections="off", lag="off")
    horizon = inbox._runtime.sources["stripe"].provider.horizon
    assert horizon == duration("3d")
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.reception.secret_uses.write()
        await advance(inbox, "2m")
        for _ in range(5):
            await refuse(inbox)
            assert (await look(inbox, "10h")).opened == []
        await refuse(inbox)
        (opened,) = (await look(inbox, "5h")).opened
        assert names([opened]) == [("refusing", "stripe")]
        assert "rejected for 2d 7h" in opened.summary and "stops retrying after 3d" in opened.summary
        await deliver(inbox, "stripe", stripe_body("evt_2"))  # the secret is right again
        await inbox._runtime.reception.secret_uses.write()
        assert await recovered(inbox) == [("refusing", "stripe")]


async def test_a_stranger_at_the_door_is_no_provider_that_gives_up(make_inbox: Make) -> None:
    inbox = make(make_inbox, rejections="off", lag="off")
    async with inbox.lifespan():
        await refuse(inbox)  # one that never came again
        assert (await look(inbox, "60h")).opened == []
        for number in range(8):  # it goes on, and authentic ones arrive meanwhile
            await refuse(inbox, 5)
            await advance(inbox, "2m")
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
            await inbox._runtime.reception.secret_uses.write()
            assert (await look(inbox, "10h")).opened == []


async def test_an_inline_event_that_fails_fires_before_its_provider_stops_retrying(make_inbox: Make) -> None:
    inbox, broken = make_inbox(config=configured(dead_letters="off")), True
    inbox.source("stripe", secrets=["whsec_test"], mode="inline", max_attempts=50)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if broken:
            raise ValueError("not today")

    inbox._runtime.start_processor()
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 500
        assert (await look(inbox, "53h")).opened == []
        (opened,) = (await look(inbox, "2h")).opened
        assert names([opened]) == [("failing", "stripe")] and "failed at every delivery for 2d 7h" in opened.summary
        broken = False
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 200
        assert await recovered(inbox) == [("failing", "stripe")]


async def test_a_rule_that_is_off_or_of_another_source_does_not_fire(make_inbox: Make) -> None:
    inbox = make(make_inbox, lag="off", sources={"github": {"lag": "1m"}})
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await deliver(inbox, "github", b"{}", headers={"X-GitHub-Delivery": "d1", "X-GitHub-Event": "push"})
        assert names((await look(inbox, "1h")).opened) == [("lag", "github")]


async def test_one_that_flaps_is_one_incident(make_inbox: Make, rows: Rows) -> None:
    inbox = make(make_inbox, rejections=2)
    async with inbox.lifespan():
        for _ in range(4):
            await refuse(inbox, 3)
            await look(inbox)
            assert (await look(inbox, "5m")).recovered == []  # below again, for a moment
        assert rows(INCIDENTS) == [("rejections", "stripe", 0)]


async def test_who_knocks_where_no_source_is_opens_no_incident(make_inbox: Make, rows: Rows) -> None:
    inbox = make(make_inbox, rejections=0)
    async with inbox.lifespan():
        assert (await post(inbox, "nobody", b"{}", {})).status == 404
        await inbox._runtime.reception.rejection_counts.write()
        assert rows("SELECT source, reason, refused FROM webhook_refusals") == [("unknown", "unknown_source", 1)]
        assert (await look(inbox)).opened == []


def test_every_rule_has_a_sentence_and_a_remedy_that_names_commands_that_exist() -> None:
    facts = dict.fromkeys(("source", "value", "threshold", "provider", "horizon"), "x")
    for rule in RULES:
        assert rule.sentence.format_map(facts).endswith(".")
        commands = re.findall(r"`oncehook ([^`]+)`", rule.remedy.format_map(facts))
        assert commands
        for words in map(str.split, commands):
            command = importlib.import_module(f"oncehook.cli.{words[0]}").command
            command.make_context(words[0], words[1:]).close()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (45, "45s"), (330, "5m 30s"), (3600, "1h"), (90000, "1d 1h"), (86400 * 3, "3d"), (3601, "1h")],
)
def test_a_duration_for_people(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


# -- once -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def hook(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"webhook": receiver.url, "secret": SECRET, "timeout": "20s", **more}


async def lagging(inbox: Inbox) -> None:
    if inbox._runtime.handlers.find("stripe", "invoice.paid") is None:
        inbox.on("stripe", "*")(lambda event: None)
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    await advance(inbox, "10m")


def said_to(receiver: Receiver) -> list[tuple[str, str]]:
    found = [json.loads(request.body) for request in receiver.requests]
    return [(body["type"], body["data"]["rule"]) for body in found]


async def test_an_incident_is_told_once_and_so_is_its_end_by_however_many_processes(
    make_inbox: Make, receiver: Receiver, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    inboxes = [make(make_inbox, targets={"ops": hook(receiver)}) for _ in range(4)]
    async with inboxes[0].lifespan(), inboxes[1].lifespan(), inboxes[2].lifespan(), inboxes[3].lifespan():
        await lagging(inboxes[0])
        for after in ("30s", "30s", "30s"):
            await advance(inboxes[0], after)
            turns = await asyncio.gather(*(one._runtime.alerts.evaluate_rules() for one in inboxes))
            assert sum(turn is not None for turn in turns) == 1
            await asyncio.gather(*(one._runtime.alerts.send_due() for one in inboxes))
        assert said_to(receiver) == [("alert.opened", "lag")]
        await drain(inboxes[0])
        for after in ("30s", "6m", "6m"):
            await advance(inboxes[0], after)
            await asyncio.gather(*(one._runtime.alerts.evaluate_rules() for one in inboxes))
            await asyncio.gather(*(one._runtime.alerts.send_due() for one in inboxes))
        assert said_to(receiver) == [("alert.opened", "lag"), ("alert.recovered", "lag")]
        assert rows(ALERTS) == [("ops", "opened", "told", 1), ("ops", "recovered", "told", 1)]
    told = [line for line in lines() if line["event"].startswith("alert")]
    assert [line["event"] for line in told] == ["alert_opened", "alert_sent", "alert_recovered", "alert_sent"]
    assert {line["incident"] for line in told} == {told[0]["incident"]}
    assert (told[1]["target"], told[1]["word"], told[1]["answer"]) == ("ops", "opened", "responded 200")


async def test_two_that_measured_at_once_open_one_incident_and_a_turn_that_is_over_writes_nothing(
    make_inbox: Make, rows: Rows
) -> None:
    inbox = make(make_inbox)
    firing = [
        {"key": f"k{n}", "rule": "lag", "source": "stripe", "value": 9, "threshold": 1, "summary": "…"} for n in (1, 2)
    ]
    options: dict[str, Any] = {"targets": ["ops"], "recover_after": 0, "remind": None}
    async with inbox.lifespan():
        first = await inbox._runtime.store.alerts.become_leader("alerts", 0)
        await advance(inbox, "1s")
        second = await inbox._runtime.store.alerts.become_leader("alerts", 0)
        assert first is not None and second is not None
        assert await inbox._runtime.store.alerts.become_leader("alerts", 3600) is None
        assert await inbox._runtime.store.alerts.record(("alerts", first), firing[:1], **options) is None
        assert rows(INCIDENTS) == []
        opened = await inbox._runtime.store.alerts.record(("alerts", second), firing[:1], **options)
        again = await inbox._runtime.store.alerts.record(("alerts", second), firing[1:], **options)
        assert opened is not None and len(opened.opened) == 1 and again is not None and again.opened == []
        assert rows("SELECT key FROM webhook_incidents") == [("k1",)]
        assert rows(ALERTS) == [("ops", "opened", "waiting", 0)]
        over = await inbox._runtime.store.alerts.record(("alerts", second), [], **options)
        assert over is not None and names(over.recovered) == [("lag", "stripe")]
        anew = await inbox._runtime.store.alerts.record(("alerts", second), firing[1:], **options)
        assert anew is not None and names(anew.opened) == [("lag", "stripe")]


async def test_who_lost_the_lease_cannot_mark_and_who_took_it_over_can(make_inbox: Make, receiver: Receiver) -> None:
    inbox = make(make_inbox, targets={"ops": hook(receiver)})
    async with inbox.lifespan():
        await lagging(inbox)
        await look(inbox)
        able = [TargetLease("ops", 50.0)]
        (first,) = await inbox._runtime.store.alerts.lease(10, "one", able)
        assert await inbox._runtime.store.alerts.lease(10, "two", able) == []
        await advance(inbox, "51s")
        (second,) = await inbox._runtime.store.alerts.lease(10, "two", able)
        assert (second.id, second.attempt, second.key) == (first.id, 2, first.key)
        assert not await inbox._runtime.store.alerts.settle(SettledAlert(first.id, first.lease, "told"))
        assert await inbox._runtime.store.alerts.settle(SettledAlert(second.id, second.lease, "told"))
        assert not await inbox._runtime.store.alerts.settle(SettledAlert(second.id, second.lease, "told"))
        assert await inbox._runtime.store.alerts.lease(10, "three", able) == []


async def test_a_mark_that_is_lost_repeats_the_alert_with_the_same_id(
    make_inbox: Make, receiver: Receiver, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make(make_inbox, targets={"ops": hook(receiver)})
    async with inbox.lifespan():
        await lagging(inbox)
        await look(inbox)
        with monkeypatch.context() as patch:

            async def lost(settled: Any) -> bool:
                raise StoreUnavailable("gone")

            patch.setattr(inbox._runtime.store.alerts, "settle", lost)
            assert await inbox._runtime.alerts.send_due() == 1
        assert await inbox._runtime.alerts.send_due() == 0  # its lease holds
        await advance(inbox, 20 + monitor.MARGIN + 1)
        assert await inbox._runtime.alerts.send_due() == 1
        ids = [request.headers["webhook-id"] for request in receiver.requests]
        assert len(ids) == 2 and len(set(ids)) == 1
        assert [request.headers["idempotency-key"] for request in receiver.requests] == ids
        assert rows(ALERTS) == [("ops", "opened", "told", 2)]


async def test_a_target_that_was_down_is_told_later_in_order_and_another_only_once(
    make_inbox: Make, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async with receiving(said(503), said(500), said(200)) as down, receiving() as well:
        inbox = make(make_inbox, targets={"down": hook(down), "well": hook(well)})
        async with inbox.lifespan():
            await lagging(inbox)
            await look(inbox)
            assert await inbox._runtime.alerts.send_due() == 2
            await drain(inbox)
            await look(inbox)
            await look(inbox, "6m")  # it is over before the one that is down was ever told
            assert await inbox._runtime.alerts.send_due() == 2
            assert said_to(well) == [("alert.opened", "lag"), ("alert.recovered", "lag")]
            assert said_to(down) == [("alert.opened", "lag")] * 2
            await advance(inbox, "1h")
            assert await inbox._runtime.alerts.send_due() == 2
            assert said_to(down) == [("alert.opened", "lag")] * 3 + [("alert.recovered", "lag")]
            assert len({request.headers["webhook-id"] for request in down.requests}) == 2
            assert {status for _, _, status, _ in rows(ALERTS)} == {"told"}
    untold = [line for line in lines() if line["event"] == "alert_retrying"]
    assert [line["target"] for line in untold] == ["down", "down"]
    assert untold[0]["error"] == f"UnexpectedStatus: http://127.0.0.1:{down.port} answered 503"


async def test_a_target_that_stays_down_is_given_up_and_not_told_of_the_end(make_inbox: Make, rows: Rows) -> None:
    async with receiving(said(410)) as gone:
        inbox = make(make_inbox, targets={"ops": hook(gone)})
        async with inbox.lifespan():
            await lagging(inbox)
            await look(inbox)
            await inbox._runtime.alerts.send_due()
            await drain(inbox)
            await look(inbox)
            await look(inbox, "6m")
            assert await inbox._runtime.alerts.send_due() == 0
            assert rows(ALERTS) == [("ops", "opened", "failed", 1)]


async def test_who_wants_to_be_reminded_is_once_in_so_long_while_it_is_open(
    make_inbox: Make, receiver: Receiver
) -> None:
    inbox = make(make_inbox, remind="1h", targets={"ops": hook(receiver)})
    async with inbox.lifespan():
        await lagging(inbox)
        for after in ("30s", "50m", "20m", "10m", "70m"):
            await look(inbox, after)
            await inbox._runtime.alerts.send_due()
        types = [kind for kind, _ in said_to(receiver)]
        assert types == ["alert.opened", "alert.reminder", "alert.reminder"]
        assert len({request.headers["webhook-id"] for request in receiver.requests}) == 3
        assert "of stripe is 2h" in json.loads(receiver.requests[-1].body)["data"]["summary"]
        await look(inbox, "61m")
        await drain(inbox)
        await look(inbox)
        await look(inbox, "6m")  # over before the third reminder was sent
        assert await inbox._runtime.alerts.send_due() == 1
        assert said_to(receiver)[-1] == ("alert.recovered", "lag")


async def test_what_is_long_over_is_pruned(make_inbox: Make, receiver: Receiver, rows: Rows) -> None:
    inbox = make(make_inbox, targets={"ops": hook(receiver)})
    async with inbox.lifespan():
        await lagging(inbox)
        await refuse(inbox)
        await look(inbox)
        await drain(inbox)
        await look(inbox)
        await look(inbox, "6m")
        await advance(inbox, "40d")
        await inbox._runtime.store.alerts.prune(monitor.INCIDENT_RETENTION, monitor.DAY, monitor.ACK_RETENTION)
        assert len(rows(INCIDENTS)) == 1 and rows("SELECT * FROM webhook_refusals") == []
        await advance(inbox, "60d")
        await inbox._runtime.store.alerts.prune(monitor.INCIDENT_RETENTION, monitor.DAY, monitor.ACK_RETENTION)
        assert rows(INCIDENTS) == [] and rows(ALERTS) == []


async def test_a_database_that_does_not_answer_recovers_nothing(
    make_inbox: Make, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make(make_inbox, recover_after="0s")
    async with inbox.lifespan():
        await lagging(inbox)
        await look(inbox)
        with monkeypatch.context() as patch:

            async def fails(name: str, given: Any) -> list[dict[str, Any]]:
                raise StoreUnavailable("gone")

            patch.setattr(inbox._runtime.store.alerts, "measure", fails)
            with pytest.raises(StoreUnavailable):
                await look(inbox)
        assert rows(INCIDENTS) == [("lag", "stripe", 0)]
