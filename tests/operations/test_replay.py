"""Replay moves finished receipts back to received, once and with an audit record, on both databases."""

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from oncehook import Effect, Event, Fail, Inbox, State
from oncehook.model.effect import EffectFilter
from oncehook.model.receipt import Filter
from oncehook.model.states import TRANSITIONS
from oncehook.operations.replay import (
    BATCH,
    REPLAYABLE,
    RateLimit,
    Replayed,
    obstacle,
    pages,
    preview,
    replay,
    replay_effects,
    retry_now,
    whoami,
    with_horizon,
)
from oncehook.store.rows import Selection
from tests.support.clocks import ManualClock
from tests.support.effects import record
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import all_rows, claim

pytestmark = pytest.mark.anyio


@pytest.fixture
def inbox(ledger_inbox: Inbox) -> Inbox:
    return ledger_inbox


STATES = "SELECT event_id, status, attempts, replays, outcome, last_error FROM webhook_receipts ORDER BY id"


FINISHED = {"failed", "processed", "ignored"}


async def claim_in(inbox: Inbox, rows: Rows, *states: str) -> list[int]:
    """Claim a receipt in each state. The event id is the name of the state."""
    receipts = await claim(inbox, *states)
    rows(
        "UPDATE webhook_receipts SET status = event_id, attempts = 3, crashes = 1, outcome = event_id, last_error = 'x'"
    )
    return receipts


def select_events(**filters: Any) -> Selection:
    return Selection(Filter(**filters))


def audit_records(rows: Rows) -> list[dict[str, Any]]:
    found = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    return [{"actor": actor, "action": action, **json.loads(detail)} for actor, action, detail in found]


async def test_dead_letter_is_processed_by_a_replay_after_its_handler_was_fixed(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    broken = True

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, f"replay {event.replays}, attempt {event.attempt}")
        if broken:
            raise Fail("no such customer")

    (receipt,) = await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows(STATES) == [("evt_1", "failed", 1, 0, "failed", "Fail: no such customer")])
    assert rows("SELECT * FROM ledger") == []
    broken = False
    done = await replay(inbox._runtime.store, Selection(receipts=(receipt,)), actor="ann@desk")
    assert done.as_json() == {"matched": 1, "replayed": 1, "from": {"failed": 1}, "left": {}}
    await eventually(lambda: rows(STATES) == [("evt_1", "processed", 1, 1, "processed", None)])
    assert rows("SELECT * FROM ledger") == [("evt_1", "replay 1, attempt 1")]
    assert rows("SELECT number, outcome, version FROM webhook_attempts ORDER BY id") == [
        (1, "failed", "v2"),
        (1, "processed", "v2"),
    ]
    (audit,) = audit_records(rows)
    assert (audit["actor"], audit["action"], audit["count"]) == ("ann@desk", "replay", 1)
    assert (audit["receipts"], audit["selection"]) == ([receipt], {"named": 1})
    ((when, who),) = [(row.at, row.actor) for row in await inbox._runtime.store.operations.replays(receipt)]
    assert who == "ann@desk" and when.endswith("Z")
    assert await inbox._runtime.store.operations.replays(receipt + 1) == []


async def test_each_replay_of_a_processed_event_runs_its_handler_once(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, str(event.replays))

    (receipt,) = await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    for number in range(3):
        expected = [("evt_1", "processed", 1, number, "processed", None)]
        await eventually(partial(lambda state: rows(STATES) == state, expected))
        await replay(inbox._runtime.store, Selection(receipts=(receipt,)))
    await eventually(lambda: len(rows("SELECT note FROM ledger")) == 4)
    assert rows("SELECT note FROM ledger ORDER BY note") == [("0",), ("1",), ("2",), ("3",)]


async def test_only_finished_receipts_are_replayed_and_the_others_are_counted(inbox: Inbox, rows: Rows) -> None:
    await claim_in(inbox, rows, *(state.value for state in State))
    before = {row[0]: row for row in rows(STATES)}
    expected = await preview(inbox._runtime.store, Selection())
    done = await replay(inbox._runtime.store, Selection())
    assert done == expected
    assert done.matched == 6 and set(done.replayed) == FINISHED
    assert done.left == {"received": 1, "processing": 1, "retrying": 1}
    for row in rows(STATES):
        moved = (row[0], "received", 0, 1, None, None)
        assert row == (moved if row[0] in FINISHED else before[row[0]])
    moved_rows = rows(
        "SELECT count(*) FROM webhook_receipts WHERE replays = 1 AND crashes = 0 "
        "AND next_attempt_at = replayed_at AND failed_at IS NULL "
        "AND processed_at IS NULL AND handler IS NULL"
    )
    assert moved_rows == [(3,)]


def test_replayable_states_follow_from_the_transitions() -> None:
    back = {state for state, following in TRANSITIONS.items() if state and State.RECEIVED in following}
    assert REPLAYABLE == back - {State.PROCESSING} == FINISHED
    assert {state for state in State if obstacle(state, has_type=True, has_payload=True) is None} == FINISHED


async def test_receipt_without_payload_or_type_cannot_be_replayed(inbox: Inbox, rows: Rows) -> None:
    gone, untyped, sound = await claim(inbox, "evt_1", "evt_2", "evt_3")
    rows("UPDATE webhook_receipts SET status = 'failed'")
    rows(f"DELETE FROM webhook_payloads WHERE receipt_id = {gone}")
    rows(f"UPDATE webhook_receipts SET type = NULL WHERE id = {untyped}")
    assert await inbox._runtime.store.operations.replay([gone, untyped], "ann", {}) == []
    assert audit_records(rows) == []
    done = await replay(inbox._runtime.store, select_events(status="failed"))
    assert done.as_json() == {
        "matched": 3, "replayed": 1, "from": {"failed": 1}, "left": {"no type": 1, "payload pruned": 1}
    }  # fmt: skip
    assert rows("SELECT id FROM webhook_receipts WHERE status = 'received'") == [(sound,)]


FILTERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "source": ({"source": "live"}, {"evt_4"}),
    "type": ({"type": "invoice"}, {"evt_1", "evt_2", "evt_4"}),
    "pattern": ({"type": "charge.*"}, {"evt_3"}),
    "object": ({"object": "in_2"}, {"evt_2"}),
    "status": ({"status": "failed"}, {"evt_1", "evt_3"}),
    "search": ({"search": "needle"}, {"evt_3"}),
    "together": ({"type": "invoice", "status": "failed"}, {"evt_1"}),
    "nothing": ({"source": "unknown"}, set()),
}


async def claim_examples(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    await claim(inbox, "evt_2", object_id="in_2", type="invoice.voided")
    await claim(inbox, "evt_3", type="charge.refunded", body=b'{"id":"evt_3","a":"needle"}')
    await claim(inbox, "evt_4", source="live")
    rows("UPDATE webhook_receipts SET status = 'processed' WHERE event_id IN ('evt_2', 'evt_4')")
    rows("UPDATE webhook_receipts SET status = 'failed' WHERE event_id IN ('evt_1', 'evt_3')")


@pytest.mark.parametrize(("filters", "expected"), FILTERS.values(), ids=FILTERS)
async def test_filter_selects_the_events_of_a_replay(
    inbox: Inbox, rows: Rows, filters: dict[str, Any], expected: set[str]
) -> None:
    await claim_examples(inbox, rows)
    done = await replay(inbox._runtime.store, select_events(**filters))
    moved = {event_id for (event_id,) in rows("SELECT event_id FROM webhook_receipts WHERE status = 'received'")}
    assert moved == expected and done.count == done.matched == len(expected)
    assert [audit["selection"] for audit in audit_records(rows)] == ([filters] if expected else [])


async def test_time_range_selects_events_received_in_it(inbox: Inbox, rows: Rows) -> None:
    await claim_examples(inbox, rows)
    now = await inbox._runtime.store.operations.now()
    for filters, expected in (
        ({"since": now - timedelta(hours=1)}, 4),
        ({"since": now + timedelta(hours=1)}, 0),
        ({"until": now - timedelta(hours=1)}, 0),
        ({"since": now - timedelta(hours=1), "until": now + timedelta(hours=1)}, 4),
    ):
        assert (await preview(inbox._runtime.store, select_events(**filters))).count == expected
    await replay(inbox._runtime.store, select_events(since=now - timedelta(hours=1)))
    ((audit),) = audit_records(rows)
    assert audit["selection"]["since"].endswith("Z") and audit["count"] == 4


async def test_replay_of_a_version_selects_only_the_events_that_it_handled(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        pass

    await claim(inbox, "evt_1", "evt_2")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(2,)])
    rows("UPDATE webhook_receipts SET version = 'v1' WHERE event_id = 'evt_1'")
    assert inbox._runtime.worker is not None
    await inbox._runtime.worker.stop()
    assert (await replay(inbox._runtime.store, Selection(handled_by="v0"))).matched == 0
    assert (await replay(inbox._runtime.store, Selection(Filter(source="stripe"), handled_by="v1"))).count == 1
    assert rows("SELECT event_id FROM webhook_receipts WHERE status = 'received'") == [("evt_1",)]
    (audit,) = audit_records(rows)
    assert audit["selection"] == {"source": "stripe", "handled_by": "v1"}


async def test_large_replay_runs_in_batches_that_are_each_recorded(inbox: Inbox, rows: Rows) -> None:
    receipts = await claim(inbox, *(f"evt_{n:03d}" for n in range(25)))
    rows("UPDATE webhook_receipts SET status = 'processed'")
    progress: list[tuple[int, int]] = []
    done = await replay(
        inbox._runtime.store,
        Selection(),
        batch=10,
        progress=lambda so_far: progress.append((so_far.matched, so_far.count)),
    )
    assert done.count == 25 and progress == [(10, 10), (20, 20), (25, 25)]
    began, *records, ended = audit_records(rows)
    assert (began["action"], ended["action"], ended["state"]) == ("replay_started", "replay_ended", "done")
    assert [record["count"] for record in records] == [10, 10, 5]
    assert {record["action"] for record in records} == {"replay_batch"}
    assert [receipt for record in records for receipt in record["receipts"]] == sorted(receipts)
    assert len({record["run"] for record in (began, *records, ended)}) == 1
    assert {record["actor"] for record in records} == {whoami()}


async def test_events_that_arrive_during_a_replay_are_not_part_of_it(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1", "evt_2")
    rows("UPDATE webhook_receipts SET status = 'processed'")
    selection = await with_horizon(inbox._runtime.store, Selection())
    await claim(inbox, "evt_3")
    rows("UPDATE webhook_receipts SET status = 'processed', received_at = '2099-01-01T00:00:00.000000Z' "
         "WHERE event_id = 'evt_3'")  # fmt: skip
    assert (await replay(inbox._runtime.store, selection, batch=1)).matched == 2
    assert (await replay(inbox._runtime.store, Selection(), batch=1)).matched == 2


async def test_concurrent_replays_move_each_receipt_once(
    inbox: Inbox, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    await claim(inbox, *(f"evt_{n:03d}" for n in range(300)))
    rows("UPDATE webhook_receipts SET status = 'failed'")
    other = make_inbox(worker=False)
    async with other.lifespan():
        stores = (inbox._runtime.store, other._runtime.store, inbox._runtime.store, other._runtime.store)
        done = await asyncio.gather(*(replay(store, select_events(), batch=20) for store in stores))
    assert sum(one.count for one in done) == 300
    assert rows("SELECT status, replays, count(*) FROM webhook_receipts GROUP BY status, replays") == [
        ("received", 1, 300)
    ]
    assert sum(record.get("count", 0) for record in audit_records(rows)) == 300


async def test_replay_and_its_audit_record_are_one_transaction(inbox: Inbox, rows: Rows) -> None:
    (receipt,) = await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'failed'")
    rows("DROP TABLE webhook_audit")
    with pytest.raises(Exception, match="webhook_audit"):
        await replay(inbox._runtime.store, Selection(receipts=(receipt,)))
    assert rows("SELECT status, replays FROM webhook_receipts") == [("failed", 0)]


async def test_preview_of_a_replay_writes_nothing(inbox: Inbox, rows: Rows) -> None:
    await claim_in(inbox, rows, *(state.value for state in State))
    before = all_rows(rows)
    assert (await preview(inbox._runtime.store, Selection())).count == 3
    obstacles = [
        (receipt.event_id, reason)
        async for page in pages(inbox._runtime.store, Selection(), 2)
        for receipt, reason in page
    ]
    assert sorted(obstacles) == sorted((s.value, None if s.value in FINISHED else s.value) for s in State)
    assert all_rows(rows) == before


async def test_worker_handles_the_replay_of_an_inline_receipt(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'failed', is_inline = (1 = 1)")
    await replay(inbox._runtime.store, Selection())
    assert [one.event_id for one in await inbox._runtime.store.leases.take(10, 30, "me")] == ["evt_1"]


async def test_replay_is_logged_once_with_actor_count_and_selection(
    inbox: Inbox, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    await claim(inbox, "evt_1", "evt_2", "evt_3")
    rows("UPDATE webhook_receipts SET status = 'failed' WHERE event_id <> 'evt_3'")
    caplog.set_level(logging.INFO, "oncehook")
    await replay(inbox._runtime.store, select_events(status="failed"), actor="ann@desk", batch=1)
    await replay(
        inbox._runtime.store, select_events(status="failed"), actor="ann@desk"
    )  # nothing is replayed, so nothing is logged
    (line,) = [vars(record) for record in caplog.records if vars(record).get("event") == "replayed"]
    assert (line["actor"], line["count"], line["selection"]) == ("ann@desk", 2, {"status": "failed"})
    assert {audit["run"] for audit in audit_records(rows)} == {line["run"]}


async def test_retries_of_every_page_are_counted(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, *(f"evt_{n:03}" for n in range(BATCH + 1)))
    rows("""UPDATE webhook_receipts SET status = 'retrying', attempts = 1,
            next_attempt_at = '2999-01-01T00:00:00.000000Z'""")
    done = await retry_now(inbox._runtime.store, select_events(source="stripe"), actor="ann@desk")
    assert (done.matched, done.count, done.left) == (BATCH + 1, BATCH + 1, {})


async def test_replayed_effects_of_every_page_are_returned(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    @inbox.effect
    def send(effect: Effect, number: int) -> None: ...

    await record(inbox, "evt_1", "evt_2", "evt_3")
    rows("UPDATE webhook_effects SET status = 'failed'")
    monkeypatch.setattr("oncehook.operations.replay.BATCH", 2)
    ids = {row[0] for row in rows("SELECT id FROM webhook_effects")}
    assert len(ids) == 3
    assert await replay_effects(inbox._runtime.store, EffectFilter(source="stripe"), actor="ann@desk") == ids


def test_json_of_an_empty_replay_has_zero_counts() -> None:
    assert Replayed().as_json() == {"matched": 0, "replayed": 0, "from": {}, "left": {}}


def test_rate_limit_does_not_catch_up_after_a_slow_batch() -> None:
    clock = ManualClock()
    limit, delays = RateLimit(10.0, clock), list[float]()
    for seconds in (0.0, 5.0, 0.0):
        delays.append(limit.delay())
        clock.advance(limit.delay() + seconds)
        limit.count(10)
    delays.append(limit.delay())
    assert delays == [0.0, 1.0, 1.0, 1.0], "the batch after one that took 5 s must wait too"
