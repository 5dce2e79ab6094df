"""The alert monitor sends each notification of an incident once per target, whatever processes die or targets fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Inbox, StoreUnavailable
from oncehook.alerts import monitor
from oncehook.model.incident import SettledAlert, TargetLease
from oncehook.store.leadership import LeadershipLost
from oncehook.testing import advance, deliver, drain
from tests.support.alerts import (
    ALERTS,
    INCIDENTS,
    SECRET,
    configured,
    evaluate_after,
    make_alert_inbox,
    names,
    send_forged,
)
from tests.support.events import Rows, stripe_body
from tests.support.http_target import Receiver, http_response, receiving, stall_after
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


Make = Callable[..., Inbox]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def hook_target(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"webhook": receiver.url, "secret": SECRET, "timeout": "20s", **more}


async def make_lag(inbox: Inbox) -> None:
    if inbox._runtime.handlers.find("stripe", "invoice.paid") is None:
        inbox.on("stripe", "*")(lambda event: None)
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    await advance(inbox, "10m")


def notifications_of(receiver: Receiver) -> list[tuple[str, str]]:
    found = [json.loads(request.body) for request in receiver.requests]
    return [(body["type"], body["data"]["rule"]) for body in found]


@pytest.mark.sampled(1)
async def test_four_processes_send_each_notification_of_an_incident_once(
    make_inbox: Make, receiver: Receiver, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    inboxes = [make_alert_inbox(make_inbox, targets={"ops": hook_target(receiver)}) for _ in range(4)]
    async with inboxes[0].lifespan(), inboxes[1].lifespan(), inboxes[2].lifespan(), inboxes[3].lifespan():
        await make_lag(inboxes[0])
        for after in ("30s", "30s", "30s"):
            await advance(inboxes[0], after)
            results = await asyncio.gather(*(inbox._runtime.alerts.evaluate_rules() for inbox in inboxes))
            assert sum(result is not None for result in results) == 1, "one process must be the leader"
            await asyncio.gather(*(inbox._runtime.alerts.send_due() for inbox in inboxes))
        assert notifications_of(receiver) == [("alert.opened", "lag")]
        await drain(inboxes[0])
        for after in ("30s", "6m", "6m"):
            await advance(inboxes[0], after)
            await asyncio.gather(*(inbox._runtime.alerts.evaluate_rules() for inbox in inboxes))
            await asyncio.gather(*(inbox._runtime.alerts.send_due() for inbox in inboxes))
        assert notifications_of(receiver) == [("alert.opened", "lag"), ("alert.recovered", "lag")]
        assert rows(ALERTS) == [("ops", "opened", "told", 1), ("ops", "recovered", "told", 1)]
    logged = [line for line in lines() if line["event"].startswith("alert")]
    assert [line["event"] for line in logged] == ["alert_opened", "alert_sent", "alert_recovered", "alert_sent"]
    assert {line["incident"] for line in logged} == {logged[0]["incident"]}
    assert (logged[1]["target"], logged[1]["word"], logged[1]["answer"]) == ("ops", "opened", "responded 200")


async def test_two_evaluations_open_one_incident_and_an_expired_lock_writes_nothing(
    make_inbox: Make, rows: Rows
) -> None:
    inbox = make_alert_inbox(make_inbox)
    firing = [
        {"key": f"k{n}", "rule": "lag", "source": "stripe", "value": 9, "threshold": 1, "summary": "…"} for n in (1, 2)
    ]
    options: dict[str, Any] = {"targets": ["ops"], "recover_after": 0, "remind": None}
    async with inbox.lifespan():
        store = inbox._runtime.store
        first = await store.leadership.take("alerts", 0)
        await advance(inbox, "1s")
        second = await store.leadership.take("alerts", 3600)
        assert first is not None and second is not None
        assert await store.leadership.take("alerts", 0) is None
        with pytest.raises(LeadershipLost):
            await store.alerts.record(first, firing[:1], **options)
        assert rows(INCIDENTS) == []
        opened = await store.alerts.record(second, firing[:1], **options)
        again = await store.alerts.record(second, firing[1:], **options)
        assert len(opened.opened) == 1 and again.opened == []
        assert rows("SELECT key FROM webhook_incidents") == [("k1",)]
        assert rows(ALERTS) == [("ops", "opened", "waiting", 0)]
        over = await store.alerts.record(second, [], **options)
        assert names(over.recovered) == [("lag", "stripe")]
        reopened = await store.alerts.record(second, firing[1:], **options)
        assert names(reopened.opened) == [("lag", "stripe")]


async def test_process_that_lost_the_lease_of_a_notification_cannot_settle_it(
    make_inbox: Make, receiver: Receiver
) -> None:
    inbox = make_alert_inbox(make_inbox, targets={"ops": hook_target(receiver)})
    async with inbox.lifespan():
        await make_lag(inbox)
        await evaluate_after(inbox)
        leases = [TargetLease("ops", 50.0)]
        (first,) = await inbox._runtime.store.alerts.lease(10, "one", leases)
        assert await inbox._runtime.store.alerts.lease(10, "two", leases) == []
        await advance(inbox, "51s")
        (second,) = await inbox._runtime.store.alerts.lease(10, "two", leases)
        assert (second.id, second.attempt, second.key) == (first.id, 2, first.key)
        assert not await inbox._runtime.store.alerts.settle(SettledAlert(first.id, first.lease, "told"))
        assert await inbox._runtime.store.alerts.settle(SettledAlert(second.id, second.lease, "told"))
        assert not await inbox._runtime.store.alerts.settle(SettledAlert(second.id, second.lease, "told"))
        assert await inbox._runtime.store.alerts.lease(10, "three", leases) == []


async def test_notification_is_repeated_with_the_same_id_when_settling_fails(
    make_inbox: Make, receiver: Receiver, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make_alert_inbox(make_inbox, targets={"ops": hook_target(receiver)})
    async with inbox.lifespan():
        await make_lag(inbox)
        await evaluate_after(inbox)
        with monkeypatch.context() as patch:

            async def lost(settled: Any) -> bool:
                raise StoreUnavailable("gone")

            patch.setattr(inbox._runtime.store.alerts, "settle", lost)
            assert await inbox._runtime.alerts.send_due() == 1
        assert await inbox._runtime.alerts.send_due() == 0  # it is still leased
        await advance(inbox, 20 + monitor.MARGIN + 1)
        assert await inbox._runtime.alerts.send_due() == 1
        ids = [request.headers["webhook-id"] for request in receiver.requests]
        assert len(ids) == 2 and len(set(ids)) == 1
        assert [request.headers["idempotency-key"] for request in receiver.requests] == ids
        assert rows(ALERTS) == [("ops", "opened", "told", 2)]


async def test_target_that_was_down_gets_its_notifications_later_and_other_targets_only_once(
    make_inbox: Make, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async with receiving(http_response(503), http_response(500), http_response(200)) as down, receiving() as well:
        inbox = make_alert_inbox(make_inbox, targets={"down": hook_target(down), "well": hook_target(well)})
        async with inbox.lifespan():
            await make_lag(inbox)
            await evaluate_after(inbox)
            assert await inbox._runtime.alerts.send_due() == 2
            await drain(inbox)
            await evaluate_after(inbox)
            await evaluate_after(inbox, "6m")  # the incident recovers before the failing target got its alert
            assert await inbox._runtime.alerts.send_due() == 2
            assert notifications_of(well) == [("alert.opened", "lag"), ("alert.recovered", "lag")]
            assert notifications_of(down) == [("alert.opened", "lag")] * 2
            await advance(inbox, "1h")
            assert await inbox._runtime.alerts.send_due() == 2
            assert notifications_of(down) == [("alert.opened", "lag")] * 3 + [("alert.recovered", "lag")]
            assert len({request.headers["webhook-id"] for request in down.requests}) == 2
            assert {status for _, _, status, _ in rows(ALERTS)} == {"told"}
    retried = [line for line in lines() if line["event"] == "alert_retrying"]
    assert [line["target"] for line in retried] == ["down", "down"]
    assert retried[0]["error"] == f"UnexpectedStatus: http://127.0.0.1:{down.port} answered 503"


async def test_more_notifications_are_due_than_are_sent_at_once(
    make_inbox: Make, receiver: Receiver, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SLOTS", 2)
    targets = {f"ops{number}": hook_target(receiver) for number in range(5)}
    inbox = make_alert_inbox(make_inbox, targets=targets)
    async with inbox.lifespan():
        await make_lag(inbox)
        await evaluate_after(inbox)
        assert await inbox._runtime.alerts.send_due() == 5
    assert sorted(rows(ALERTS)) == [(name, "opened", "told", 1) for name in targets]


async def test_target_that_stays_down_gets_no_recovery_notification(make_inbox: Make, rows: Rows) -> None:
    async with receiving(http_response(410)) as gone:
        inbox = make_alert_inbox(make_inbox, targets={"ops": hook_target(gone)})
        async with inbox.lifespan():
            await make_lag(inbox)
            await evaluate_after(inbox)
            await inbox._runtime.alerts.send_due()
            await drain(inbox)
            await evaluate_after(inbox)
            await evaluate_after(inbox, "6m")
            assert await inbox._runtime.alerts.send_due() == 0
            assert rows(ALERTS) == [("ops", "opened", "failed", 1)]


async def test_reminders_are_sent_at_their_interval_while_an_incident_is_open(
    make_inbox: Make, receiver: Receiver
) -> None:
    inbox = make_alert_inbox(make_inbox, remind="1h", targets={"ops": hook_target(receiver)})
    async with inbox.lifespan():
        await make_lag(inbox)
        for after in ("30s", "50m", "20m", "10m", "70m"):
            await evaluate_after(inbox, after)
            await inbox._runtime.alerts.send_due()
        types = [kind for kind, _ in notifications_of(receiver)]
        assert types == ["alert.opened", "alert.reminder", "alert.reminder"]
        assert len({request.headers["webhook-id"] for request in receiver.requests}) == 3
        assert "of stripe is 2h" in json.loads(receiver.requests[-1].body)["data"]["summary"]
        await evaluate_after(inbox, "61m")
        await drain(inbox)
        await evaluate_after(inbox)
        await evaluate_after(inbox, "6m")  # it recovers before the third reminder is sent
        assert await inbox._runtime.alerts.send_due() == 1
        assert notifications_of(receiver)[-1] == ("alert.recovered", "lag")


async def test_old_incidents_and_rejection_counts_are_pruned(make_inbox: Make, receiver: Receiver, rows: Rows) -> None:
    inbox = make_alert_inbox(make_inbox, targets={"ops": hook_target(receiver)})
    async with inbox.lifespan():
        await make_lag(inbox)
        await send_forged(inbox)
        await evaluate_after(inbox)
        await drain(inbox)
        await evaluate_after(inbox)
        await evaluate_after(inbox, "6m")
        await advance(inbox, "40d")
        store, horizons = inbox._runtime.store, (monitor.INCIDENT_RETENTION, monitor.DAY, monitor.ACK_RETENTION)
        leadership = await store.leadership.take("alerts", 60)
        assert leadership is not None
        await store.alerts.prune(leadership, *horizons)
        assert len(rows(INCIDENTS)) == 1 and rows("SELECT * FROM webhook_refusals") == []
        await advance(inbox, "60d")
        await store.alerts.prune(leadership, *horizons)
        assert rows(INCIDENTS) == [] and rows(ALERTS) == []


async def test_incident_does_not_recover_because_the_database_does_not_answer(
    make_inbox: Make, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make_alert_inbox(make_inbox, recover_after="0s")
    async with inbox.lifespan():
        await make_lag(inbox)
        await evaluate_after(inbox)
        with monkeypatch.context() as patch:

            async def fails(name: str, given: Any) -> list[dict[str, Any]]:
                raise StoreUnavailable("gone")

            patch.setattr(inbox._runtime.store.alerts, "measure", fails)
            with pytest.raises(StoreUnavailable):
                await evaluate_after(inbox)
        assert rows(INCIDENTS) == [("lag", "stripe", 0)]


async def test_log_lines_and_rows_hold_no_secret_when_every_target_fails(
    make_inbox: Callable[..., Inbox], rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "oncehook")
    secrets = ("path-of-slack", "p-secret", "u-secret", SECRET, "token-of-the-pager")
    async with (
        receiving(http_response(500, body=b"p-secret")) as receiver,
        receiving(b"220 x\r\n", http_response(200)) as mailer,
    ):
        at = f"http://127.0.0.1:{receiver.port}/path-of-slack"
        targets = {
            "hook": {"webhook": at, "secret": SECRET},
            "chat": {"slack": at},
            "mail": {"smtp": f"127.0.0.1:{mailer.port}", "sender": "a@b.c", "to": "d@e.f", "user": "u-secret",
                     "password": "p-secret", "timeout": "500ms"},
            "page": {"command": ["false", "token-of-the-pager"]},
        }  # fmt: skip
        inbox = make_inbox(config=configured(targets=targets))
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            await advance(inbox, "10m")
            await evaluate_after(inbox)
            assert await inbox._runtime.alerts.send_due() == 4
    retrying = [record for record in caplog.records if vars(record).get("event") == "alert_retrying"]
    assert len(retrying) == 4
    texts = " ".join(str(record.__dict__) for record in caplog.records)
    texts += str(rows("SELECT last_error FROM webhook_alerts")) + str(rows("SELECT summary FROM webhook_incidents"))
    assert [secret for secret in secrets if secret in texts] == [], "no secret may be logged or stored"


async def test_a_stuck_target_does_not_delay_others_and_stop_ends_sending(make_inbox: Callable[..., Inbox]) -> None:
    async with receiving(stall_after()) as stuck, receiving() as well:
        targets = {"stuck": {"slack": stuck.url}, "well": {"slack": well.url}}
        inbox = make_inbox(config=configured(every="50ms", targets=targets, recover_after="1h"))
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            await advance(inbox, "10m")
            inbox._runtime.alerts.start()
            await eventually(lambda: bool(stuck.requests) and bool(well.requests))
            async with asyncio.timeout(30):
                await inbox._runtime.alerts.stop()
        assert len(well.requests) == 1
