"""Replays and the audit log of every store."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.lease import Settled
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.fsck import assert_fsck_is_clean
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
    for action in ("replay_batch", "replay_ended"):  # people see one row per replay
        await store.operations.audit("me", action, {"run": "r1"})
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
    await store.retention.erase([failed], None, "privacy team", json.dumps({"receipts": [failed]}))
    assert len(await store.operations.replays(failed)) == 1, "an erasure is no replay"
    assert await store.leases.settle([processed(processing)]) == {processing.receipt}, "its worker must keep the lease"


AS_NEW = """
    status, attempts, crashes, replays, is_inline, processed_at, failed_at, unhandled_at, started_at, last_error,
    outcome, handler, version, next_attempt_at IS NOT NULL, replayed_at IS NOT NULL
"""


async def test_replayed_receipt_is_as_new_whatever_it_was(store: Store, rows: Rows, database: str) -> None:
    """A worker leases it at once, next to others, also if its source was inline or its worker had crashed."""
    done, untouched = await claim_and_lease(store, 2)
    assert await store.leases.settle([processed(done), processed(untouched)]) == {done.receipt, untouched.receipt}
    inline = make_claim("inline", inline_seconds=60.0, inline_lease=7, status=State.PROCESSING)
    crashed, ignored, other = [claimed.receipt for claimed in await store.claims.insert([
        inline,
        make_claim("ignored", status=State.IGNORED, last_error="its filter left it out"),
        make_claim("other", status=State.FAILED, last_error="E: no"),
    ])]  # fmt: skip
    failed = Settled(crashed, 7, State.FAILED, "crashed", error="E: no", handler="h", version="v", crashed=True)
    assert await store.leases.settle([failed]) == {crashed}
    replayed = [done.receipt, crashed, ignored]
    assert await store.operations.replay(replayed, "ops", {}) == replayed
    no, yes = (0, 1) if store.dialect.name == "sqlite" else (False, True)
    state = ("received", 0, 0, 1, no, None, None, None, None, None, None, None, None, yes, yes)
    assert rows(f"SELECT {AS_NEW} FROM webhook_receipts WHERE replays > 0 ORDER BY id") == [state] * 3
    assert rows(f"SELECT status, replays, last_error FROM webhook_receipts WHERE id = {other}") == [
        ("failed", 0, "E: no")
    ]
    assert rows(f"SELECT status FROM webhook_receipts WHERE id = {untouched.receipt}") == [("processed",)]
    assert rows("SELECT receipt_id, number, outcome FROM webhook_attempts ORDER BY receipt_id") == [
        (done.receipt, 1, "processed"),
        (untouched.receipt, 1, "processed"),
        (crashed, 1, "crashed"),
    ]
    assert_fsck_is_clean(database)
    assert sorted(leased.receipt for leased in await store.leases.take(10, 30, "worker")) == replayed


async def test_only_events_that_still_have_their_payload_are_replayed(store: Store) -> None:
    erased, kept = await claim(store, "erased", "kept", copies=(ConsumerClaim("ledger"),), status=State.FAILED)
    ledger = store.leases_of("ledger")
    leased = {receipt.event_id: receipt for receipt in await ledger.take(10, 30, "worker")}
    await settle(store, list(leased.values()), State.FAILED)
    assert await store.retention.erase([erased], None, "ops", "{}") == 1
    of_ledger = [leased["erased"].receipt, leased["kept"].receipt]
    assert await store.operations.replay([erased, kept, *of_ledger], "ops", {}) == [kept, leased["kept"].receipt]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_receipts_that_another_session_has_locked_are_skipped(store: Store, database: str) -> None:
    failed = await claim(store, "locked", "free", status=State.FAILED)
    leased = await claim_and_lease(store, 2)
    await settle(store, leased, State.RETRYING, after=3600.0)
    with psycopg.connect(database) as session:
        session.execute("SELECT 1 FROM webhook_receipts WHERE event_id IN ('locked', 'evt_0') FOR UPDATE")
        async with asyncio.timeout(5):
            assert await store.operations.replay(failed, "ops", {}) == [failed[1]]
            retried = await store.operations.retry_now([receipt.receipt for receipt in leased], "ops", {})
            assert retried == [leased[1].receipt]


async def test_replay_of_nothing_is_not_audited(store: Store) -> None:
    assert await store.operations.replay([12345], "ops", {}) == []
    assert await store.operations.audited(before=None, limit=10) == []


async def test_retry_now_makes_waiting_retries_due(store: Store) -> None:
    (leased,) = await claim_and_lease(store)
    await settle(store, [leased], State.RETRYING, after=3600.0)
    assert await store.leases.take(1, 30, "worker") == []
    assert await store.operations.retry_now([leased.receipt], "ops", {}) == [leased.receipt]
    assert len(await store.leases.take(1, 30, "worker")) == 1


async def test_retry_now_changes_only_the_chosen_retries_of_workers(store: Store, rows: Rows) -> None:
    """An inline event is retried by its provider, and an event that is due keeps its place."""
    leased = await claim_and_lease(store, 3)
    await settle(store, leased[:2], State.RETRYING, after=3600.0)
    await settle(store, leased[2:], State.RETRYING, after=0.0)
    (inline,) = await store.claims.insert([make_claim("inline", inline_seconds=60.0, status=State.PROCESSING)])
    retried = Settled(inline.receipt, 0, State.RETRYING, "retrying", after=3600.0, error="E: no")
    assert await store.leases.settle([retried]) == {inline.receipt}
    await store.schema.move_times_back(60)
    before: dict[int, Any] = dict(rows("SELECT id, next_attempt_at FROM webhook_receipts"))
    chosen, _, due = [receipt.receipt for receipt in leased]
    (waiting,) = await claim(store, "waiting")
    (failed,) = await claim(store, "failed", status=State.FAILED)
    others = [waiting, failed, inline.receipt]
    assert sorted(await store.operations.retry_now([chosen, due, *others], "ops", {})) == [chosen, due]
    after: dict[int, Any] = dict(rows("SELECT id, next_attempt_at FROM webhook_receipts"))
    assert {receipt for receipt in before if after[receipt] != before[receipt]} == {chosen}
    assert after[chosen] < before[chosen]


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
