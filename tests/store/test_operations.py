"""Replays and the audit log of every store."""

import json

import pytest

from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.stores import claim_and_lease, processed
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
