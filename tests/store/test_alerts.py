"""Alerts on every store: counts, the leader, incidents and notifications."""

from typing import Any

import pytest

from oncehook import Inbox
from oncehook.model.incident import SettledAlert, TargetLease
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.leadership import Leadership, LeadershipLost
from oncehook.store.store import Store
from oncehook.testing import advance
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio

TARGETS = [TargetLease("ops", 30.0), TargetLease("pager", 30.0)]


def firing(rule: str = "lag", value: float = 90.0) -> dict[str, Any]:
    return {
        "key": f"key of {rule}", "rule": rule, "source": "stripe", "value": value, "threshold": 60.0,
        "summary": "stripe lags",
    }  # fmt: skip


async def lead(store: Store) -> Leadership:
    leadership = await store.leadership.take("alerts", 0)
    assert leadership is not None
    return leadership


async def record(store: Store, *rules: dict[str, Any], recover_after: float = 0.0, remind: float | None = None) -> Any:
    return await store.alerts.record(
        await lead(store), rules, targets=["ops", "pager"], recover_after=recover_after, remind=remind
    )


async def send_all(store: Store, *targets: str) -> list[tuple[str, str]]:
    """Send the due notifications of these targets, and return (target, word) of each."""
    leased = await store.alerts.lease(10, "worker", [target for target in TARGETS if target.target in targets])
    for alert in leased:
        assert await store.alerts.settle(SettledAlert(alert.id, alert.lease, "told"))
    return [(alert.target, alert.word) for alert in leased]


async def test_rejection_counts_are_added_up_per_source_and_reason(store: Store, rows: Rows) -> None:
    await store.alerts.note_rejections({("stripe", "bad_signature"): 2})
    await store.alerts.note_rejections({("stripe", "bad_signature"): 3, ("stripe", "too_large"): 1})
    counts = "SELECT reason, CAST(sum(refused) AS integer) FROM webhook_refusals GROUP BY reason ORDER BY reason"
    assert rows(counts) == [("bad_signature", 5), ("too_large", 1)]
    (row,) = await store.alerts.measure("rejection_counts", {"seconds": 300})
    assert (row.source, row.value) == ("stripe", 6)


async def test_ack_counts_are_added_up_per_bucket(store: Store) -> None:
    await store.alerts.note_acks({("stripe", 3): 10, ("stripe", 7): 1})
    await store.alerts.note_acks({("stripe", 3): 5})
    buckets = await store.alerts.measure("ack_buckets", {"seconds": 300})
    assert {(row.source, row.bucket): row.value for row in buckets} == {("stripe", 3): 15, ("stripe", 7): 1}


async def test_age_of_an_event_counts_from_its_replay_also_while_its_handler_runs(inbox: Inbox) -> None:
    """Otherwise a replay of old dead letters would open an incident as soon as a worker leases the first of them."""
    store = inbox._runtime.store

    async def age() -> float:
        (row,) = await store.alerts.measure("oldest_unfinished", {})
        return float(row.value)

    (receipt,) = await claim(inbox, "evt_1")
    (leased,) = await store.leases.take(1, 30, "worker")
    await store.leases.settle([Settled(leased.receipt, leased.lease, State.FAILED, "failed", error="not today")])
    await advance(inbox, "1d")
    assert await store.operations.replay([receipt], "ops@host", {}) == [receipt]
    await advance(inbox, "4m")
    assert 239 < await age() < 300
    assert len(await store.leases.take(1, 30, "worker")) == 1
    assert 239 < await age() < 300


async def test_former_leader_records_nothing(store: Store, rows: Rows) -> None:
    former = await lead(store)
    await lead(store)
    with pytest.raises(LeadershipLost):
        await store.alerts.record(former, [firing()], targets=["ops"], recover_after=0.0, remind=None)
    with pytest.raises(LeadershipLost):
        await store.alerts.prune(former, 0.0, 0.0, 0.0)
    assert rows("SELECT * FROM webhook_incidents") == []


async def test_rule_that_keeps_firing_has_one_incident_with_its_worst_value(store: Store) -> None:
    opened = (await record(store, firing(value=90.0))).opened
    assert [(incident.rule, incident.source) for incident in opened] == [("lag", "stripe")]
    assert (await record(store, firing(value=200.0))).opened == []
    assert (await record(store, firing(value=100.0))).opened == []
    (incident,) = await store.alerts.incidents(10)
    assert (incident.value, incident.worst) == (100.0, 200.0)
    assert [(alert.target, alert.word, alert.status) for alert in incident.alerts] == [
        ("ops", "opened", "waiting"),
        ("pager", "opened", "waiting"),
    ]


async def test_incident_recovers_after_its_rule_stopped_firing_long_enough(store: Store) -> None:
    await record(store, firing())
    assert (await record(store, recover_after=3600.0)).recovered == []
    recovered = (await record(store, recover_after=0.0)).recovered
    assert [incident.rule for incident in recovered] == ["lag"]
    assert await store.alerts.incidents(10) == []


async def test_recovery_is_sent_only_to_targets_that_received_the_opening(store: Store) -> None:
    await record(store, firing())
    assert await send_all(store, "ops") == [("ops", "opened")]
    await record(store)
    await record(store)
    assert await send_all(store, "ops") == [("ops", "recovered")]
    assert await send_all(store, "pager") == [("pager", "opened")]
    assert await send_all(store, "pager") == [("pager", "recovered")]


async def test_reminder_is_queued_once_per_interval(store: Store, rows: Rows) -> None:
    await record(store, firing())
    await send_all(store, "ops")
    rows("UPDATE webhook_incidents SET opened_at = '2026-01-01T00:00:00.000000Z' RETURNING id")
    for _ in range(3):
        await record(store, firing(), remind=10_000_000.0)
    assert len(rows("SELECT * FROM webhook_alerts WHERE word = 'reminder'")) == 1


async def test_sender_with_a_lost_lease_cannot_settle(store: Store, rows: Rows) -> None:
    await record(store, firing())
    (lost,) = await store.alerts.lease(1, "first", TARGETS[:1])
    assert await store.alerts.lease(1, "second", TARGETS[:1]) == [], "the notification is leased"
    rows("UPDATE webhook_alerts SET next_attempt_at = '2026-01-01T00:00:00.000000Z' RETURNING id")
    (again,) = await store.alerts.lease(1, "second", TARGETS[:1])
    assert again.lease > lost.lease and again.attempt == 2
    assert not await store.alerts.settle(SettledAlert(lost.id, lost.lease, "told"))
    assert await store.alerts.settle(SettledAlert(again.id, again.lease, "failed", error="gone"))


async def test_prune_deletes_old_incidents_and_counts(store: Store, rows: Rows) -> None:
    await record(store, firing())
    await record(store)
    await record(store)
    await store.alerts.note_rejections({("stripe", "too_large"): 1})
    await store.alerts.note_acks({("stripe", 1): 1})
    await store.schema.move_times_back(7200)
    await store.alerts.prune(await lead(store), 3600.0, 3600.0, 3600.0)
    for table in ("webhook_incidents", "webhook_alerts", "webhook_refusals", "webhook_acks"):
        assert rows(f"SELECT * FROM {table}") == [], f"{table} must be empty"
