"""What a handler can do with `tx`, on both databases."""

import asyncio
import threading
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry, SyncEvent
from oncehook.store.transaction import TransactionClosed
from tests.support.events import Rows
from tests.support.stores import processed
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio

NOTES = "SELECT note FROM ledger ORDER BY note"
SLOW = Retry(attempts=5, first=3600, most=3600)


async def test_tx_has_the_same_methods_on_both_databases(ledger_inbox: Inbox, insert_note: str) -> None:
    transaction = ledger_inbox._runtime.store.transaction()
    tx = transaction.make_tx(is_async=True)
    await tx.execute(insert_note, "one")
    await tx.execute(insert_note, "two")
    assert [dict(row) for row in await tx.fetch(NOTES)] == [{"note": "one"}, {"note": "two"}]
    assert (await tx.fetchrow(NOTES))["note"] == "one"
    assert await tx.fetchrow("SELECT note FROM ledger WHERE note = 'three'") is None
    assert await tx.fetchval("SELECT count(*) FROM ledger") == 2
    assert await tx.fetchval("SELECT note FROM ledger WHERE note = 'three'") is None
    await transaction.rollback()


async def test_two_concurrent_first_statements_share_one_transaction(
    ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    """The second statement must neither wait for the first nor begin another transaction."""
    (leased,) = await ledger_inbox._runtime.store.leases.take(1, 30, "worker")
    transaction = ledger_inbox._runtime.store.transaction()
    first, second = await asyncio.wait_for(asyncio.gather(transaction.connection(), transaction.connection()), 30)
    await first.execute(insert_note, "one")
    await second.execute(insert_note, "two")
    assert await transaction.settle([processed(leased)]) is True
    assert rows(NOTES) == [("one",), ("two",)]


async def test_savepoint_rolls_back_only_its_block(ledger_inbox: Inbox, rows: Rows, insert_note: str) -> None:
    @ledger_inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, "before")
        with pytest.raises(ValueError, match="inner"):
            async with tx.transaction():
                await tx.execute(insert_note, "undone")
                raise ValueError("inner")
        async with tx.transaction():
            await tx.execute(insert_note, "kept")
            async with tx.transaction():
                await tx.execute(insert_note, "kept deeper")

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows(NOTES) == [("before",), ("kept",), ("kept deeper",)]


async def test_released_savepoint_is_rolled_back_with_the_handler(
    ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    @ledger_inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        async with tx.transaction():
            await tx.execute(insert_note, "released")
        raise ValueError("after it")

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "retrying", 1))
    assert rows(NOTES) == []


async def test_tx_raises_after_its_handler_has_ended(ledger_inbox: Inbox, rows: Rows, insert_note: str) -> None:
    saved: list[Any] = []

    @ledger_inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, "work")
        saved.append(tx)

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        await saved[0].execute(insert_note, "too late")
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        async with saved[0].transaction():
            pass
    assert rows(NOTES) == [("work",)]


async def test_plain_def_handler_gets_a_synchronous_tx(ledger_inbox: Inbox, rows: Rows, insert_note: str) -> None:
    threads: list[threading.Thread] = []

    @ledger_inbox.on("stripe", "invoice.paid")
    def paid(event: SyncEvent, tx: Any) -> None:
        threads.append(threading.current_thread())
        tx.execute(insert_note, "plain")
        with pytest.raises(ValueError, match="inner"), tx.transaction():
            tx.execute(insert_note, "undone")
            raise ValueError("inner")
        with tx.transaction():
            tx.execute(insert_note, f"{tx.fetchval('SELECT count(*) FROM ledger')} before")

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows(NOTES) == [("1 before",), ("plain",)]
    assert threads != [threading.main_thread()]


async def test_writes_of_a_handler_that_timed_out_are_rolled_back(
    ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    late = threading.Event()
    refused: list[BaseException] = []

    @ledger_inbox.on("stripe", "invoice.paid", retry=SLOW, timeout="0.3s")
    def paid(event: SyncEvent, tx: Any) -> None:
        tx.execute(insert_note, "work")
        late.wait(10)
        try:
            tx.execute(insert_note, "too late")
        except TransactionClosed as error:
            refused.append(error)

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "retrying", 1))
    late.set()
    await eventually(lambda: bool(refused))
    assert rows(NOTES) == []
