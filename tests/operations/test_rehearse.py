"""A rehearsal runs the handler, records its statements, and changes nothing, on both databases."""

from typing import Any

import pytest

from oncehook import Event, Inbox, SyncEvent
from oncehook.operations.rehearse import Rehearsal, rehearse, row_count
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from tests.support.events import Rows
from tests.support.work import all_rows, claim

pytestmark = pytest.mark.anyio


@pytest.fixture
def inbox(ledger_inbox: Inbox) -> Inbox:
    return ledger_inbox


async def rehearse_receipt(inbox: Inbox, receipt: int) -> Rehearsal:
    found = await inbox._runtime.store.receipts.get(receipt)
    assert found is not None
    return await rehearse(inbox._runtime.store, inbox._runtime.handlers, found)


def statements_of(rehearsal: Rehearsal) -> list[tuple[str, int | None, bool]]:
    return [(statement.sql, statement.rows, statement.undone) for statement in rehearsal.statements]


async def test_rehearsal_lists_statements_with_row_counts_and_changes_nothing(
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
    before = all_rows(rows)
    rehearsal = await rehearse_receipt(inbox, receipt)
    assert rehearsal.error is None and rehearsal.handler is not None and rehearsal.handler.endswith("paid")
    assert statements_of(rehearsal) == [
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
    assert all_rows(rows) == before
    assert (await replay(inbox._runtime.store, Selection(receipts=(receipt,)))).count == 1, "and no lock is left"


async def test_rehearsal_runs_plain_functions_and_handlers_without_tx(inbox: Inbox, rows: Rows, insert: str) -> None:
    called: list[str] = []

    @inbox.on("stripe", "invoice.paid")
    def paid(event: SyncEvent, tx: Any) -> None:
        tx.execute(insert, event.id, "sync")

    @inbox.on("stripe", "invoice.voided")
    def voided(event: SyncEvent) -> None:
        called.append(event.id)

    first, second, third = [
        (await claim(inbox, f"evt_{n}", type=type_))[0]
        for n, type_ in enumerate(("invoice.paid", "invoice.voided", "other"))
    ]
    rows("UPDATE webhook_receipts SET status = 'failed'")
    before = all_rows(rows)
    assert statements_of(await rehearse_receipt(inbox, first)) == [(insert, 1, False)]
    assert (await rehearse_receipt(inbox, second)).statements == [] and called == ["evt_1"]
    unhandled = await rehearse_receipt(inbox, third)
    assert (unhandled.handler, unhandled.error, unhandled.statements) == (None, None, [])
    assert all_rows(rows) == before


async def test_rehearsal_shows_the_error_of_a_handler(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, "one")
        await tx.execute("SELECT * FROM nowhere")

    (receipt,) = await claim(inbox, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'failed'")
    before = all_rows(rows)
    rehearsal = await rehearse_receipt(inbox, receipt)
    assert statements_of(rehearsal) == [(insert, 1, False), ("SELECT * FROM nowhere", None, False)]
    assert rehearsal.error is not None and "nowhere" in rehearsal.error
    assert rehearsal.statements[-1].error == rehearsal.error
    assert all_rows(rows) == before


async def test_rehearsal_marks_statements_of_a_rolled_back_savepoint_as_undone(
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
    rehearsal = await rehearse_receipt(inbox, receipt)
    assert statements_of(rehearsal) == [(insert, 1, True), (insert, 1, False)]
    assert rehearsal.error is None and rows("SELECT * FROM ledger") == []


@pytest.mark.parametrize("ending", ["COMMIT", " commit ;", "INSERT INTO ledger VALUES ('a', 'b'); COMMIT", "ROLLBACK"])
async def test_rehearsed_handler_cannot_end_its_transaction(inbox: Inbox, rows: Rows, insert: str, ending: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, "one")
        await tx.execute(ending)

    (receipt,) = await claim(inbox, "evt_1")
    rehearsal = await rehearse_receipt(inbox, receipt)
    assert rehearsal.error is not None and "must not end its own transaction" in rehearsal.error
    assert rows("SELECT * FROM ledger") == []


async def test_rehearsal_of_a_pruned_payload_is_an_error(inbox: Inbox, rows: Rows) -> None:
    (receipt,) = await claim(inbox, "evt_1")
    rows("DELETE FROM webhook_payloads")
    rehearsal = await rehearse_receipt(inbox, receipt)
    assert rehearsal.error is not None and "pruned" in rehearsal.error


def test_row_count_reads_the_result_of_each_driver() -> None:
    assert [row_count(result) for result in (3, -1, "UPDATE 3", "INSERT 0 2", "CREATE TABLE", None)] == [
        3, None, 3, 2, None, None
    ]  # fmt: skip
