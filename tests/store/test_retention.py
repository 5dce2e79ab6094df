"""Retention on every store."""

from typing import Any

import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.operations.prune import cutoffs
from oncehook.store.retention import SqlPruning
from oncehook.store.rows import Cutoffs, PruneCursor
from oncehook.store.store import Store
from tests.support.ages import set_age
from tests.support.events import Rows
from tests.support.retention import KEEP_30, events_with_payload, prune_now, stored_events
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_receipt_that_is_replayed_during_a_prune_is_kept(store: Store, database: str, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2")
    for name in ("evt_1", "evt_2"):
        set_age(database, name, 40, "processed")
    receipts, _ = cutoffs(KEEP_30, await store.operations.now())
    async with store.retention.start_pruning() as pruning:
        assert isinstance(pruning, SqlPruning)
        find_old = pruning._old_receipts

        async def replay_between(before: Cutoffs, after: PruneCursor | None, limit: int) -> Any:
            page = await find_old(before, after, limit)
            set_age(database, "evt_1", 40, "received")
            return page

        pruning._old_receipts = replay_between  # type: ignore[method-assign]
        assert (await pruning.prune_receipts(receipts, None, 100))[0] == {"stripe": 1}
    assert stored_events(rows) == events_with_payload(rows) == ["evt_1"]


async def test_prunable_counts_old_finished_receipts_and_their_payloads(store: Store, database: str) -> None:
    await claim(store, "old", "old and failed", "recent")
    set_age(database, "old", 40, "processed")
    set_age(database, "old and failed", 40, "failed")
    set_age(database, "recent", 10, "processed")
    receipts, payloads = cutoffs(KEEP_30, await store.operations.now())
    (row,) = await store.retention.prunable(receipts, payloads)
    assert (row.source, row.receipts, row.payloads) == ("stripe", 1, 1)


async def test_prune_continues_at_its_cursor(store: Store, database: str, rows: Rows) -> None:
    await claim(store, *(f"evt_{n}" for n in range(5)))
    for n in range(5):
        set_age(database, f"evt_{n}", 40, "processed")
    receipts, _ = cutoffs(KEEP_30, await store.operations.now())
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None
        counts, cursor = await pruning.prune_payloads(receipts, None, 3)
        assert counts == {"stripe": 3} and cursor is not None
        assert len(events_with_payload(rows)) == 2
        assert await pruning.prune_payloads(receipts, cursor, 3) == ({"stripe": 2}, None)
    assert events_with_payload(rows) == [] and len(stored_events(rows)) == 5


async def test_prunable_payloads_are_counted_once_per_event_that_has_one(store: Store, database: str) -> None:
    erased, *_ = await claim(store, "erased", "old", copies=(ConsumerClaim("ledger"),))
    for event_id in ("erased", "old"):
        set_age(database, event_id, 40, "processed")
    assert await store.retention.erase([erased], None, "ops", "{}") == 1
    receipts, payloads = cutoffs(KEEP_30, await store.operations.now())
    (row,) = await store.retention.prunable(receipts, payloads)
    assert (row.receipts, row.payloads) == (4, 1)


async def test_prune_keeps_what_is_recorded_about_other_events(store: Store, database: str, rows: Rows) -> None:
    old, new = await claim(store, "old", "new")
    for receipt in (old, new):
        values = f"({receipt}, 'stripe', 'stale', 'stripe', 'invoice:in_1')"
        rows(f"INSERT INTO webhook_noops (receipt_id, source, reason, scope, key) VALUES {values}")
    set_age(database, "old", 40, "processed")
    set_age(database, "new", 20, "processed")
    await prune_now(store)
    assert stored_events(rows) == ["new"]
    assert rows("SELECT receipt_id FROM webhook_noops") == [(new,)]


async def test_prune_without_cutoffs_deletes_nothing(store: Store, database: str, rows: Rows) -> None:
    await claim(store, "evt_1")
    set_age(database, "evt_1", 4000, "processed")
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None
        assert await pruning.prune_receipts({}, None, 10) == ({}, None)
    assert stored_events(rows) == ["evt_1"]


async def test_erase_deletes_payloads_and_the_text_in_other_columns(store: Store, rows: Rows) -> None:
    receipts = await claim(store, "evt_1", object_id="jane@example.com", correlation_id="trace of jane@example.com")
    (other,) = await claim(store, "evt_2", object_id="in_2")
    assert await store.retention.with_object("jane@example.com") == receipts
    assert await store.retention.erase(receipts, "jane@example.com", "ops", '{"why": "asked"}') == 1
    assert rows("SELECT event_id, object_id, correlation_id FROM webhook_receipts ORDER BY id") == [
        ("evt_1", None, None),
        ("evt_2", "in_2", None),
    ]
    assert [row.receipt_id for row in await store.retention.payloads(0, 10)] == [other]
    assert rows("SELECT actor, action FROM webhook_audit") == [("ops", "forget")]


JANE = "Trace of Jane@Example.com"
TEXTS = ("object_id", "correlation_id", "last_error", "serial_key")


async def test_erase_leaves_texts_that_do_not_mention_the_address(store: Store, rows: Rows) -> None:
    """Each erased receipt mentions the address in one column. A receipt that is not erased mentions it in each."""
    names = [*TEXTS, "none", "waiting", "another"]
    receipts = dict(zip(names, await claim(store, *names), strict=True))
    other = ", ".join(f"{column} = 'other'" for column in TEXTS)
    rows(f"UPDATE webhook_receipts SET status = 'processed', {other}")
    for column in TEXTS:
        rows(f"UPDATE webhook_receipts SET {column} = '{JANE}' WHERE id IN ({receipts[column]}, {receipts['another']})")
    rows(f"UPDATE webhook_receipts SET status = 'received', serial_key = '{JANE}' WHERE id = {receipts['waiting']}")
    chosen = [receipt for name, receipt in receipts.items() if name != "another"]
    assert await store.retention.erase(chosen, "jane@example.com", "ops", "{}") == len(chosen)
    left = {event_id: texts for event_id, *texts in rows(f"SELECT event_id, {', '.join(TEXTS)} FROM webhook_receipts")}
    assert left == {
        "object_id": [None, "other", "other", "other"],
        "correlation_id": ["other", None, "other", "other"],
        "last_error": ["other", "other", "(erased)", "other"],
        "serial_key": ["other", "other", "other", None],
        "none": ["other"] * 4,
        "waiting": ["other", "other", "other", JANE],  # without it, the event could overtake others
        "another": [JANE] * 4,
    }


async def test_erase_finds_the_address_in_errors_and_tracebacks_of_attempts(store: Store, rows: Rows) -> None:
    await claim(store, *(f"evt_{n}" for n in range(4)))
    for leased, error, traceback in zip(
        await store.leases.take(4, 30, "worker"), (JANE, "no", "no", JANE), ("at 1", JANE, "at 1", JANE), strict=True
    ):
        attempt = Settled(
            leased.receipt, leased.lease, State.RETRYING, "retrying", after=60.0, error=error, traceback=traceback
        )
        assert await store.leases.settle([attempt])
    chosen = [row[0] for row in rows("SELECT id FROM webhook_receipts ORDER BY id LIMIT 3")]
    await store.retention.erase(chosen, "jane@example.com", "ops", "{}")
    assert rows("SELECT error, traceback FROM webhook_past_attempts ORDER BY receipt_id") == [
        ("(erased)", None), ("(erased)", None), ("no", "at 1"), (JANE, JANE)
    ]  # fmt: skip


async def test_payloads_are_read_in_pages(store: Store) -> None:
    receipts = await claim(store, "a", "b", "c")
    first = await store.retention.payloads(0, 2)
    rest = await store.retention.payloads(first[-1].receipt_id, 2)
    assert [row.receipt_id for row in first + rest] == receipts
