"""Handlers' transactions on both databases: writes and the processed status commit together or not at all."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from oncehook import Event, Inbox, Retry
from oncehook.store.transaction import Transaction
from tests.support.events import Rows, make_claim
from tests.support.stores import processed
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio

RECEIPTS = "SELECT status, attempts, outcome FROM webhook_receipts ORDER BY id"
NOTES = "SELECT note FROM ledger ORDER BY note"
SLOW = Retry(attempts=5, first=3600, most=3600)
STEAL = "UPDATE webhook_receipts SET lease = lease + 1 WHERE event_id = 'evt_1' RETURNING id"


async def test_transaction_does_not_begin_if_the_handler_never_uses_tx(ledger_inbox: Inbox) -> None:
    begun: list[bool] = []
    make_transaction = ledger_inbox._runtime.store.transaction

    def make_watched() -> Transaction:
        transaction = make_transaction()
        begin = transaction.connection

        async def connection() -> Any:
            begun.append(True)
            return await begin()

        transaction.connection = connection  # type: ignore[method-assign]
        return transaction

    ledger_inbox._runtime.store.transaction = make_watched
    handled = asyncio.Event()

    @ledger_inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        handled.set()

    ledger_inbox._runtime.start_worker()
    await asyncio.wait_for(handled.wait(), 10)
    assert begun == [], "the transaction must not begin"


async def test_transaction_holds_no_lock_before_the_first_statement(ledger_inbox: Inbox, insert_note: str) -> None:
    """A handler that waits for the network must not block another writer."""
    waiting, network = asyncio.Event(), asyncio.Event()

    @ledger_inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        waiting.set()
        await network.wait()
        await tx.execute(insert_note, "after the call")

    ledger_inbox._runtime.start_worker()
    await asyncio.wait_for(waiting.wait(), 10)
    await asyncio.wait_for(ledger_inbox._runtime.store.claims.insert([make_claim("evt_2")]), 30)
    network.set()


async def test_writes_and_the_processed_status_commit_together(
    ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    (leased,) = await ledger_inbox._runtime.store.leases.take(1, 30, "worker")
    transaction = ledger_inbox._runtime.store.transaction()
    tx = transaction.make_tx(is_async=True)
    await tx.execute(insert_note, "work")
    assert (rows(RECEIPTS)[0][0], rows(NOTES)) == ("processing", [])
    assert await transaction.settle([processed(leased)]) is True
    assert (rows(RECEIPTS), rows(NOTES)) == ([("processed", 1, "processed")], [("work",)])


async def test_writes_of_a_failed_handler_are_rolled_back(ledger_inbox: Inbox, rows: Rows, insert_note: str) -> None:
    @ledger_inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, "work")
        raise ConnectionError("the bank is closed")

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "retrying", 1))
    assert (rows(RECEIPTS), rows(NOTES)) == ([("retrying", 1, "retrying")], [])


async def test_worker_with_a_lost_lease_cannot_commit(ledger_inbox: Inbox, rows: Rows, insert_note: str) -> None:
    (leased,) = await ledger_inbox._runtime.store.leases.take(1, 30, "worker")
    late = ledger_inbox._runtime.store.transaction()
    rows(STEAL)
    taken = replace(leased, lease=leased.lease + 1)
    second = ledger_inbox._runtime.store.transaction()
    await second.make_tx(is_async=True).execute(insert_note, "the second worker's")
    assert await second.settle([processed(taken)]) is True
    await late.make_tx(is_async=True).execute(insert_note, "the zombie's")
    assert await late.settle([processed(leased)]) is False
    assert (rows(RECEIPTS), rows(NOTES)) == ([("processed", 1, "processed")], [("the second worker's",)])


async def test_writes_are_rolled_back_if_the_lease_is_lost_while_the_handler_runs(
    ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    ended = asyncio.Event()

    @ledger_inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        rows(STEAL)
        await tx.execute(insert_note, "the zombie's")
        ended.set()

    ledger_inbox._runtime.start_worker()
    await asyncio.wait_for(ended.wait(), 10)
    await ledger_inbox.stop()
    assert (rows(RECEIPTS)[0][0], rows(NOTES)) == ("processing", [])
    await ledger_inbox.start()


async def test_event_is_not_processed_if_the_handler_sends_rollback(
    ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    @ledger_inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, "work")
        await tx.execute("ROLLBACK")

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "retrying", 1))
    assert "must not send COMMIT" in rows("SELECT last_error FROM webhook_receipts")[0][0]
