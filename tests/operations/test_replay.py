"""Replay and rehearsal, on both databases, asserting rows."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, State
from oncehook.model.receipt import Filter
from oncehook.model.states import TRANSITIONS
from oncehook.operations.rehearse import Rehearsal, rehearse, row_count
from oncehook.operations.replay import REPLAYABLE, Replayed, obstacle, pages, preview, replay, whoami, with_horizon
from oncehook.store.rows import Selection
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

STATES = "SELECT event_id, status, attempts, replays, outcome, last_error FROM webhook_receipts ORDER BY id"
FINISHED = {"failed", "processed", "ignored"}


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """An inbox without a worker yet, and a table that handlers write to."""
    inbox = make_inbox(worker=False, version="v2")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (event_id TEXT NOT NULL, note TEXT)")
        yield inbox


@pytest.fixture
def insert(database: str) -> str:
    marks = "$1, $2" if database.startswith("postgresql") else "?, ?"
    return f"INSERT INTO ledger (event_id, note) VALUES ({marks})"


async def claim_in(inbox: Inbox, rows: Rows, *states: str) -> list[int]:
    """A receipt in each state; its event's id is the state's name."""
    receipts = await claim(inbox, *states)
    rows(
        "UPDATE webhook_receipts SET status = event_id, attempts = 3, crashes = 1, outcome = event_id, last_error = 'x'"
    )
    return receipts


def all_of(**filters: Any) -> Selection:
    return Selection(Filter(**filters))


def audits(rows: Rows) -> list[dict[str, Any]]:
    found = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    return [{"actor": actor, "action": action, **json.loads(detail)} for actor, action, detail in found]


async def everything(inbox: Inbox, rows: Rows) -> list[Any]:
    """Every row that a replay or a handler could change."""
    tables = ("webhook_receipts", "webhook_attempts", "webhook_audit", "webhook_payloads", "ledger")
    return [rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]


# -- replay ---------------------------------------------------------------------------------------------------------


async def test_a_dead_letter_is_replayed_by_hand_after_its_handler_was_mended(
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
    (audit,) = audits(rows)
    assert (audit["actor"], audit["action"], audit["count"]) == ("ann@desk", "replay", 1)
    assert (audit["receipts"], audit["selection"]) == ([receipt], {"named": 1})
    ((when, who),) = [(row.at, row.actor) for row in await inbox._runtime.store.operations.replays(receipt)]
    assert who == "ann@desk" and when.endswith("Z")
    assert await inbox._runtime.store.operations.replays(receipt + 1) == []


async def test_each_replay_of_a_processed_event_is_handled_once(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, str(event.replays))

    (receipt,) = await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    for number in range(3):
        await eventually(lambda number=number: rows(STATES) == [("evt_1", "processed", 1, number, "processed", None)])
        await replay(inbox._runtime.store, Selection(receipts=(receipt,)))
    await eventually(lambda: len(rows("SELECT note FROM ledger")) == 4)
    assert rows("SELECT note FROM ledger ORDER BY note") == [("0",), ("1",), ("2",), ("3",)]


async def test_only_finished_receipts_move_and_the_others_are_counted(inbox: Inbox, rows: Rows) -> None:
    await claim_in(inbox, rows, *(state.value for state in State))
    before = {row[0]: row for row in rows(STATES)}
    would = await preview(inbox._runtime.store, Selection())
    done = await replay(inbox._runtime.store, Selection())
    assert done == would
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


def test_what_may_be_replayed_is_what_the_transitions_say() -> None:
    back = {state for state, following in TRANSITIONS.items() if state and State.RECEIVED in following}
    assert REPLAYABLE == back - {State.PROCESSING} == FINISHED
    assert {state for state in State if obstacle(state, typed=True, kept=True) is None} == FINISHED


async def test_a_receipt_without_its_payload_or_a_type_cannot_be_replayed(inbox: Inbox, rows: Rows) -> None:
    gone, untyped, sound = await claim(inbox, "evt_1", "evt_2", "evt_3")
    rows("UPDATE webhook_receipts SET status = 'failed'")
    rows(f"DELETE FROM webhook_payloads WHERE receipt_id = {gone}")
    rows(f"UPDATE webhook_receipts SET type = NULL WHERE id = {untyped}")
    assert await inbox._runtime.store.operations.replay([gone, untyped], "ann", {}) == []
    assert audits(rows) == []
    done = await replay(inbox._runtime.store, all_of(status="failed"))
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
    "nothing": ({"source": "nobody"}, set()),
}


async def fill(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    await claim(inbox, "evt_2", object_id="in_2", type="invoice.voided")
    await claim(inbox, "evt_3", type="charge.refunded", body=b'{"id":"evt_3","a":"needle"}')
    await claim(inbox, "evt_4", source="live")
    rows("UPDATE webhook_receipts SET status = 'processed' WHERE event_id IN ('evt_2', 'evt_4')")
    rows("UPDATE webhook_receipts SET status = 'failed' WHERE event_id IN ('evt_1', 'evt_3')")


@pytest.mark.parametrize(("filters", "expected"), FILTERS.values(), ids=FILTERS)
async def test_many_are_replayed_by_filter(
    inbox: Inbox, rows: Rows, filters: dict[str, Any], expected: set[str]
) -> None:
    await fill(inbox, rows)
    done = await replay(inbox._runtime.store, all_of(**filters))
    moved = {event_id for (event_id,) in rows("SELECT event_id FROM webhook_receipts WHERE status = 'received'")}
    assert moved == expected and done.count == done.matched == len(expected)
    assert [audit["selection"] for audit in audits(rows)] == ([filters] if expected else [])


async def test_a_time_range_picks_what_was_received_in_it(inbox: Inbox, rows: Rows) -> None:
    await fill(inbox, rows)
    now = await inbox._runtime.store.operations.now()
    for filters, expected in (
        ({"since": now - timedelta(hours=1)}, 4),
        ({"since": now + timedelta(hours=1)}, 0),
        ({"until": now - timedelta(hours=1)}, 0),
        ({"since": now - timedelta(hours=1), "until": now + timedelta(hours=1)}, 4),
    ):
        assert (await preview(inbox._runtime.store, all_of(**filters))).count == expected
    await replay(inbox._runtime.store, all_of(since=now - timedelta(hours=1)))
    ((audit),) = audits(rows)
    assert audit["selection"]["since"].endswith("Z") and audit["count"] == 4


async def test_what_a_version_has_handled_is_replayed_and_nothing_else(inbox: Inbox, rows: Rows) -> None:
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
    (audit,) = audits(rows)
    assert audit["selection"] == {"source": "stripe", "handled_by": "v1"}


async def test_many_go_in_small_batches_each_with_its_own_record(inbox: Inbox, rows: Rows) -> None:
    receipts = await claim(inbox, *(f"evt_{n:03d}" for n in range(25)))
    rows("UPDATE webhook_receipts SET status = 'processed'")
    told: list[tuple[int, int]] = []
    done = await replay(
        inbox._runtime.store, Selection(), batch=10, progress=lambda so_far: told.append((so_far.matched, so_far.count))
    )
    assert done.count == 25 and told == [(10, 10), (20, 20), (25, 25)]
    began, *records, ended = audits(rows)
    assert (began["action"], ended["action"], ended["state"]) == ("replay_started", "replay_ended", "done")
    assert [record["count"] for record in records] == [10, 10, 5]
    assert {record["action"] for record in records} == {"replay_batch"}
    assert [receipt for record in records for receipt in record["receipts"]] == sorted(receipts)
    assert len({record["run"] for record in (began, *records, ended)}) == 1
    assert {record["actor"] for record in records} == {whoami()}


async def test_what_arrives_while_a_replay_runs_is_not_of_it(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1", "evt_2")
    rows("UPDATE webhook_receipts SET status = 'processed'")
    selection = await with_horizon(inbox._runtime.store, Selection())
    await claim(inbox, "evt_3")
    rows("UPDATE webhook_receipts SET status = 'processed', received_at = '2099-01-01T00:00:00.000000Z' "
         "WHERE event_id = 'evt_3'")  # fmt: skip
    assert (await replay(inbox._runtime.store, selection, batch=1)).matched == 2
    assert (await replay(inbox._runtime.store, Selection(), batch=1)).matched == 2


async def test_replays_at_once_move_each_receipt_once(
    inbox: Inbox, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    await claim(inbox, *(f"evt_{n:03d}" for n in range(300)))
    rows("UPDATE webhook_receipts SET status = 'failed'")
    other = make_inbox(worker=False)
    async with other.lifespan():
        stores = (inbox._runtime.store, other._runtime.store, inbox._runtime.store, other._runtime.store)
        done = await asyncio.gather(*(replay(store, all_of(), batch=20) for store in stores))
    assert sum(one.count for one in done) == 300
    assert rows("SELECT status, replays, count(*) FROM webhook_receipts GROUP BY status, replays") == [
        ("received", 1, 300)
    ]
    assert sum(record.get("count", 0) for record in audits(rows)) == 300


async def test_the_moves_and_the_record_are_one(inbox: Inbox, rows: Rows) -> None:
    (receipt,) = await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'failed'")
    rows("DROP TABLE webhook_audit")
    with pytest.raises(Exception, match="webhook_audit"):
        await replay(inbox._runtime.store, Selection(receipts=(receipt,)))
    assert rows("SELECT status, replays FROM webhook_receipts") == [("failed", 0)]


async def test_a_survey_and_a_look_leave_nothing(inbox: Inbox, rows: Rows) -> None:
    await claim_in(inbox, rows, *(state.value for state in State))
    before = await everything(inbox, rows)
    assert (await preview(inbox._runtime.store, Selection())).count == 3
    looked = [
        (receipt.event_id, why) async for page in pages(inbox._runtime.store, Selection(), 2) for receipt, why in page
    ]
    assert sorted(looked) == sorted((s.value, None if s.value in FINISHED else s.value) for s in State)
    assert await everything(inbox, rows) == before


async def test_a_replay_of_an_inline_receipt_is_for_a_worker(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'failed', is_inline = (1 = 1)")
    await replay(inbox._runtime.store, Selection())
    assert [one.event_id for one in await inbox._runtime.store.leases.take(10, 30, "me")] == ["evt_1"]


async def test_a_replay_is_a_line_in_the_log(inbox: Inbox, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    await claim(inbox, "evt_1", "evt_2", "evt_3")
    rows("UPDATE webhook_receipts SET status = 'failed' WHERE event_id <> 'evt_3'")
    caplog.set_level(logging.INFO, "oncehook")
    await replay(inbox._runtime.store, all_of(status="failed"), actor="ann@desk", batch=1)
    await replay(inbox._runtime.store, all_of(status="failed"), actor="ann@desk")  # nothing to do, nothing to say
    (line,) = [vars(record) for record in caplog.records if vars(record).get("event") == "replayed"]
    assert (line["actor"], line["count"], line["selection"]) == ("ann@desk", 2, {"status": "failed"})
    assert {audit["run"] for audit in audits(rows)} == {line["run"]}


# -- rehearsal ------------------------------------------------------------------------------------------------------


async def rehearsed(inbox: Inbox, receipt: int) -> Rehearsal:
    found = await inbox._runtime.store.receipts.get(receipt)
    assert found is not None
    return await rehearse(inbox._runtime.store, inbox._runtime.handlers, found)


def listed(rehearsal: Rehearsal) -> list[tuple[str, int | None, bool]]:
    return [(statement.sql, statement.rows, statement.undone) for statement in rehearsal.statements]


async def test_a_rehearsal_lists_statements_with_row_counts_and_leaves_nothing(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        assert (event.attempt, event.replays, event["id"]) == (1, 1, "evt_1")
        await tx.execute(insert, event.id, "one")
        await tx.execute(insert, event.id, "two")
        assert len(await tx.fetch("SELECT * FROM ledger")) == 3
        assert await tx.fetchval("SELECT count(*) FROM ledger") == 3
        assert (await tx.fetchrow("SELECT note FROM ledger WHERE note = 'two'"))["note"] == "two"
        assert await tx.fetchval("UPDATE ledger SET note = 'x' RETURNING note") == "x"
        assert await tx.fetchrow("SELECT * FROM ledger WHERE note = 'none'") is None
        await tx.execute("DELETE FROM ledger WHERE note = 'none'")
        await tx.execute("CREATE TABLE more (id INTEGER)")

    (receipt,) = await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'processed'")
    rows("INSERT INTO ledger VALUES ('evt_0', 'kept')")
    before = await everything(inbox, rows)
    rehearsal = await rehearsed(inbox, receipt)
    assert rehearsal.error is None and rehearsal.handler is not None and rehearsal.handler.endswith("paid")
    assert listed(rehearsal) == [
        (insert, 1, False),
        (insert, 1, False),
        ("SELECT * FROM ledger", 3, False),
        ("SELECT count(*) FROM ledger", 1, False),
        ("SELECT note FROM ledger WHERE note = 'two'", 1, False),
        ("UPDATE ledger SET note = 'x' RETURNING note", 3, False),
        ("SELECT * FROM ledger WHERE note = 'none'", 0, False),
        ("DELETE FROM ledger WHERE note = 'none'", 0, False),
        ("CREATE TABLE more (id INTEGER)", None, False),
    ]
    assert rehearsal.statements[0].args == ("evt_1", "one")
    assert await everything(inbox, rows) == before
    assert (await replay(inbox._runtime.store, Selection(receipts=(receipt,)))).count == 1, "and no lock is left"


async def test_a_rehearsal_of_a_plain_function_and_of_one_without_tx(inbox: Inbox, rows: Rows, insert: str) -> None:
    called: list[str] = []

    @inbox.on("stripe", "invoice.paid")
    def paid(event: Event, tx: Any) -> None:
        tx.execute(insert, event.id, "sync")

    @inbox.on("stripe", "invoice.voided")
    def voided(event: Event) -> None:
        called.append(event.id)

    first, second, third = [
        (await claim(inbox, f"evt_{n}", type=type_))[0]
        for n, type_ in enumerate(("invoice.paid", "invoice.voided", "other"))
    ]
    rows("UPDATE webhook_receipts SET status = 'failed'")
    before = await everything(inbox, rows)
    assert listed(await rehearsed(inbox, first)) == [(insert, 1, False)]
    assert (await rehearsed(inbox, second)).statements == [] and called == ["evt_1"]
    nobody = await rehearsed(inbox, third)
    assert (nobody.handler, nobody.error, nobody.statements) == (None, None, [])
    assert await everything(inbox, rows) == before


async def test_a_rehearsal_tells_how_the_handler_failed(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, "one")
        await tx.execute("SELECT * FROM nowhere")

    (receipt,) = await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'failed'")
    before = await everything(inbox, rows)
    rehearsal = await rehearsed(inbox, receipt)
    assert listed(rehearsal) == [(insert, 1, False), ("SELECT * FROM nowhere", None, False)]
    assert rehearsal.error is not None and "nowhere" in rehearsal.error
    assert rehearsal.statements[-1].error == rehearsal.error
    assert await everything(inbox, rows) == before


async def test_a_rehearsal_marks_what_the_handler_undid_itself(
    inbox: Inbox, rows: Rows, insert: str, request: pytest.FixtureRequest, database: str
) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        try:
            async with tx.transaction():
                await tx.execute(insert, event.id, "undone")
                raise LookupError
        except LookupError:
            pass
        await tx.execute(insert, event.id, "stays")

    (receipt,) = await claim(inbox, "evt_1")
    rehearsal = await rehearsed(inbox, receipt)
    assert listed(rehearsal) == [(insert, 1, True), (insert, 1, False)]
    assert rehearsal.error is None and rows("SELECT * FROM ledger") == []


@pytest.mark.parametrize("ending", ["COMMIT", " commit ;", "INSERT INTO ledger VALUES ('a', 'b'); COMMIT", "ROLLBACK"])
async def test_a_rehearsed_handler_cannot_end_its_transaction(
    inbox: Inbox, rows: Rows, insert: str, ending: str
) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, "one")
        await tx.execute(ending)

    (receipt,) = await claim(inbox, "evt_1")
    rehearsal = await rehearsed(inbox, receipt)
    assert rehearsal.error is not None and "must not end its own transaction" in rehearsal.error
    assert rows("SELECT * FROM ledger") == []


async def test_a_rehearsal_without_a_payload_says_so(inbox: Inbox, rows: Rows) -> None:
    (receipt,) = await claim(inbox, "evt_1")
    rows("DELETE FROM webhook_payloads")
    rehearsal = await rehearsed(inbox, receipt)
    assert rehearsal.error is not None and "pruned" in rehearsal.error


def test_row_counts_are_read_as_each_driver_says_them() -> None:
    assert [row_count(said) for said in (3, -1, "UPDATE 3", "INSERT 0 2", "CREATE TABLE", None)] == [
        3, None, 3, 2, None, None
    ]  # fmt: skip


def test_a_summary_is_plain_data() -> None:
    assert Replayed().as_json() == {"matched": 0, "replayed": 0, "from": {}, "left": {}}
