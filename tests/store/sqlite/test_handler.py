"""Handlers' transactions on SQLite: one at a time, and limited in time."""

import asyncio
import gc
import sqlite3
import threading
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.store.sqlite import handler as sqlite_handler
from oncehook.store.sqlite.session import RESET_ROWID, HandlerConnection
from oncehook.store.store import Store
from oncehook.store.transaction import TransactionClosed
from tests.support.events import Rows, make_claim
from tests.support.stores import sqlite_of
from tests.support.waiting import eventually, next_turn
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio

RECEIPTS = "SELECT status, attempts, outcome FROM webhook_receipts ORDER BY id"
NOTES = "SELECT note FROM ledger ORDER BY note"
QUICK = Retry(attempts=5, first=0.01, most=0.02)


async def test_handler_transaction_commits_durably(store: Store) -> None:
    transaction = store.transaction()
    connection = await transaction.connection()
    assert await connection.fetchval("PRAGMA synchronous") == 2  # FULL
    await transaction.rollback()


async def test_error_of_a_cancelled_statement_is_not_printed(store: Store) -> None:
    """Nothing awaits it any more, so asyncio would print a traceback."""
    printed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    thread, may_fail, failed = sqlite_of(store).handler_thread, threading.Event(), threading.Event()
    assert thread is not None

    def fail(_: HandlerConnection) -> None:
        may_fail.wait(30)
        failed.set()
        raise sqlite3.OperationalError("database is locked")

    task = asyncio.create_task(thread.run(fail))
    await next_turn()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    may_fail.set()
    await asyncio.to_thread(failed.wait, 30)
    await thread.run(lambda _: None)  # the thread has finished the first one
    await next_turn()
    gc.collect()
    assert printed == []


@pytest.mark.parametrize("statement", ["ROLLBACK", RESET_ROWID])
async def test_connection_that_cannot_be_cleaned_is_replaced(
    store: Store, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would stay in its transaction, and every later handler would fail."""
    execute = HandlerConnection.execute

    def fail(connection: HandlerConnection, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql == statement:
            raise sqlite3.OperationalError("disk I/O error")
        return execute(connection, sql, *arguments)

    monkeypatch.setattr(HandlerConnection, "execute", fail)
    transaction = store.transaction()
    await (await transaction.connection()).execute(
        "INSERT INTO webhook_audit (actor, action, detail) VALUES ('a', 'b', '{}')"
    )
    await transaction.rollback()
    following = store.transaction()
    connection = await following.connection()
    assert await connection.fetchval("SELECT count(*) FROM webhook_audit") == 0
    await following.rollback()


async def test_statement_that_waits_while_another_ends_the_transaction_is_not_committed(
    ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    """INSERT OR ROLLBACK ends the transaction while the handler's second statement already waits for the thread."""
    transaction = ledger_inbox._runtime.store.transaction()
    connection = await transaction.connection()
    await connection.execute("CREATE TABLE taken (id INTEGER PRIMARY KEY)")
    await connection.execute("INSERT INTO taken VALUES (1)")
    failures = await asyncio.gather(
        connection.execute("INSERT OR ROLLBACK INTO taken VALUES (1)"),
        connection.execute(insert_note, "late"),
        return_exceptions=True,
    )
    await transaction.rollback()
    assert all(isinstance(failure, Exception) for failure in failures)
    assert rows(NOTES) == []


async def test_transaction_that_is_abandoned_while_it_waits_never_begins(ledger_inbox: Inbox, insert_note: str) -> None:
    """A thread that still waits to begin when its handler times out must not begin later."""
    first, second = ledger_inbox._runtime.store.transaction(), ledger_inbox._runtime.store.transaction()
    await first.connection()
    waiting = asyncio.ensure_future(second.connection())
    await next_turn()
    await second.rollback()
    await first.rollback()
    with pytest.raises(TransactionClosed):
        await waiting
    third = ledger_inbox._runtime.store.transaction()
    await asyncio.wait_for(third.make_tx(is_async=True).execute(insert_note, "work"), 30)
    await third.rollback()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may hold the write lock for 0.2 seconds only."""
    monkeypatch.setattr(sqlite_handler, "MAX_HANDLER_SECONDS", 0.2)


@pytest.mark.parametrize("continues", [True, False], ids=["sends more", "just returns"])
async def test_transaction_that_blocks_the_receiver_too_long_is_rolled_back_and_retried(
    short_limit: None, ledger_inbox: Inbox, rows: Rows, insert_note: str, continues: bool
) -> None:
    holding, claimed = asyncio.Event(), asyncio.Event()

    @ledger_inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, f"{event.id} {event.attempt}")
        if event.id == "evt_1" and event.attempt == 1:
            holding.set()
            await claimed.wait()
            if continues:
                await tx.execute(insert_note, "more")

    ledger_inbox._runtime.start_worker()
    await asyncio.wait_for(holding.wait(), 10)
    await asyncio.wait_for(ledger_inbox._runtime.store.claims.insert([make_claim("evt_2")]), 30)
    claimed.set()
    await eventually(lambda: [row[0] for row in rows(RECEIPTS)] == ["processed", "processed"])
    assert rows(NOTES) == [("evt_1 2",), ("evt_2 1",)]
    error = rows("SELECT error FROM webhook_attempts WHERE outcome = 'retrying'")[0][0]
    assert "more than 0.2 s" in error and "another session of your code blocked it" in error


async def test_statement_that_takes_too_long_is_interrupted(
    short_limit: None, ledger_inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

    @ledger_inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, f"attempt {event.attempt}")
        if event.attempt == 1:
            await tx.fetchval(endless)

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows(NOTES) == [("attempt 2",)]
