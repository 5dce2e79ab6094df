"""Replays and the audit log of every store."""

import json
from datetime import timedelta

import pytest

from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from tests.support.stores import claim_and_lease, processed, settle
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_replay_keeps_the_attempt_that_processed_the_event(store: Store) -> None:
    (leased,) = await claim_and_lease(store)
    assert await store.leases.settle([processed(leased)]) == {leased.receipt}
    assert await store.operations.replay([leased.receipt], "ops", {}) == [leased.receipt]
    assert [row.outcome for row in await store.receipts.attempts(leased.receipt)] == ["processed"]


async def test_audit_log_is_read_newest_first_in_pages(store: Store) -> None:
    for n in range(5):
        await store.operations.audit("me", "test", {"n": n, "text": "é"})
    first = await store.operations.audited(before=None, limit=3)
    second = await store.operations.audited(before=first[-1].id, limit=3)
    assert [row.detail["n"] for row in first + second] == [4, 3, 2, 1, 0]
    assert first[0].actor == "me" and first[0].detail["text"] == "é" and first[0].at.endswith("Z")


async def test_replay_run_sums_up_its_batches(store: Store) -> None:
    ids = await claim(store, "a", "b", "c", status=State.FAILED)
    await store.operations.audit("me", "replay_started", {"run": "r1", "matched": 3})
    await store.operations.replay(ids[:2], "me", {"run": "r1"})
    await store.operations.replay(ids[2:], "me", {"run": "r1"})
    await store.operations.audit("you", "replay_started", {"run": "r2", "matched": 9})
    rows = {row.action: row for row in await store.operations.audited_run("r1")}
    assert rows["replay"].number == 3 and json.loads(rows["replay_started"].detail or "")["matched"] == 3
    assert rows["replay_started"].actor == "me" and set(rows) == {"replay", "replay_started"}


async def test_batches_of_a_replay_are_in_the_history_of_their_receipts(store: Store) -> None:
    first, second = await claim(store, "a", "b", status=State.FAILED)
    for receipt in (first, second):
        await store.operations.replay([receipt], "me", {"run": "r1"}, action="replay_batch")
    assert [entry.actor for entry in await store.operations.replays(first)] == ["me"]
    assert [entry.actor for entry in await store.operations.replays(second)] == ["me"]


async def test_replay_skips_receipts_that_are_not_finished_or_have_no_type(store: Store) -> None:
    processing, retrying = await claim_and_lease(store, 2)
    await settle(store, [retrying], State.RETRYING, after=3600.0)
    (waiting,) = await claim(store, "waiting")
    (untyped,) = await claim(store, "untyped", status=State.FAILED, type=None)
    (failed,) = await claim(store, "failed", status=State.FAILED)
    unfinished = [waiting, processing.receipt, retrying.receipt]
    assert await store.operations.replay([*unfinished, untyped, failed], "ops", {"why": "fixed"}) == [failed]
    (entry,) = await store.operations.replays(failed)
    assert entry.actor == "ops"
    assert await store.operations.replays(waiting) == []
    assert await store.leases.settle([processed(processing)]) == {processing.receipt}, "its worker must keep the lease"


async def test_replay_of_nothing_is_not_audited(store: Store) -> None:
    assert await store.operations.replay([12345], "ops", {}) == []
    assert await store.operations.audited(before=None, limit=10) == []


async def test_retry_now_makes_waiting_retries_due(store: Store) -> None:
    (leased,) = await claim_and_lease(store)
    await settle(store, [leased], State.RETRYING, after=3600.0)
    assert await store.leases.take(1, 30, "worker") == []
    assert await store.operations.retry_now([leased.receipt], "ops", {}) == [leased.receipt]
    assert len(await store.leases.take(1, 30, "worker")) == 1


async def test_selection_is_counted_by_status_type_and_payload(store: Store) -> None:
    first, *_ = await claim(store, "a", "b", status=State.FAILED)
    await claim(store, "c", source="github", status=State.FAILED)
    selection = Selection(Filter(source="stripe"))
    (row,) = await store.operations.count(selection)
    assert (row.status, row.has_type, row.has_payload, row.receipts) == ("failed", True, True, 2)
    assert [receipt.receipt for receipt, _ in await store.operations.select(selection, after=first, limit=10)] == [
        first + 1
    ]


async def test_selection_by_receipts_version_and_horizon(store: Store) -> None:
    (leased,) = await claim_and_lease(store)
    await store.leases.settle([processed(leased)])
    before = await store.operations.now()
    selections = {
        "its receipt": Selection(receipts=(leased.receipt,)),
        "its version": Selection(handled_by="v"),
        "its arrival": Selection(horizon=before),
    }
    for condition, selection in selections.items():
        rows = await store.operations.select(selection, after=0, limit=10)
        assert [receipt.receipt for receipt, _ in rows] == [leased.receipt], condition
    others = {
        "another receipt": Selection(receipts=(leased.receipt + 1,)),
        "another version": Selection(handled_by="another"),
        "an arrival after the horizon": Selection(horizon=before - timedelta(hours=1)),
    }
    for condition, selection in others.items():
        assert await store.operations.select(selection, after=0, limit=10) == [], condition
        assert await store.operations.count(selection) == [], condition


async def test_outcomes_of_a_run_are_counted_by_the_current_status(store: Store) -> None:
    receipts = await claim(store, "a", "b", status=State.FAILED)
    await store.operations.replay(receipts, "ops", {"run": "r1"})
    (leased,) = await store.leases.take(1, 30, "worker")
    await settle(store, [leased])
    assert await store.operations.run_outcomes("r1") == {"received": 1, "processed": 1}
