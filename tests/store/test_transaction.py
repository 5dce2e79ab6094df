"""The handler's transaction, native on both databases: its writes and the mark are one, or nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from oncehook import Event, Inbox, Retry
from oncehook.model.lease import Leased, Settled
from oncehook.model.states import State
from oncehook.store.sqlite import handler as sqlite_handler
from oncehook.store.transaction import Transaction, TransactionClosed
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = Retry(attempts=5, first=0.01, most=0.02)
SLOW = Retry(attempts=5, first=3600, most=3600)
RECEIPTS = "SELECT status, attempts, outcome FROM webhook_receipts ORDER BY id"
NOTES = "SELECT note FROM ledger ORDER BY note"
STEAL = "UPDATE webhook_receipts SET lease = lease + 1 WHERE event_id = 'evt_1' RETURNING id"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker yet, with one event in it and a table for handlers to write to."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT PRIMARY KEY)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        yield inbox


@pytest.fixture
def insert(database: str) -> str:
    return f"INSERT INTO ledger (note) VALUES ({'$1' if database.startswith('postgresql') else '?'})"


@pytest.fixture
def is_sqlite(database: str) -> bool:
    return database.startswith("sqlite")


def shows(rows: Rows, status: str) -> Callable[[], bool]:
    return lambda: rows(RECEIPTS)[0][0] == status


async def lease(inbox: Inbox) -> Leased:
    [leased] = await inbox._runtime.store.leases.take(1, 30, "a worker of the test")
    return leased


def processed(leased: Leased) -> Settled:
    return Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")


# -- the mark and the work ------------------------------------------------------------------------------------------


async def test_a_handler_that_never_touches_tx_opens_nothing(inbox: Inbox) -> None:
    opened: list[bool] = []
    native = inbox._runtime.store.transaction

    def watched() -> Transaction:
        transaction = native()
        begin = transaction.connection

        async def connection() -> Any:
            opened.append(True)
            return await begin()

        transaction.connection = connection  # type: ignore[method-assign]
        return transaction

    inbox._runtime.store.transaction = watched  # type: ignore[method-assign]
    handled = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        handled.set()

    inbox._runtime.start_worker()
    await asyncio.wait_for(handled.wait(), 10)
    assert opened == []


async def test_nothing_is_held_before_the_first_statement(inbox: Inbox, insert: str) -> None:
    """Another writer is not kept waiting by a handler that is still on the network."""
    waiting, network = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        waiting.set()
        await network.wait()
        await tx.execute(insert, "after the call")

    inbox._runtime.start_worker()
    await asyncio.wait_for(waiting.wait(), 10)
    await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_2")]), 2)
    network.set()


async def test_the_writes_and_the_mark_commit_together(inbox: Inbox, rows: Rows, insert: str) -> None:
    leased = await lease(inbox)
    transaction = inbox._runtime.store.transaction()
    tx = transaction.make_tx(is_async=True)
    await tx.execute(insert, "work")
    assert (rows(RECEIPTS)[0][0], rows(NOTES)) == ("processing", [])
    assert await transaction.settle([processed(leased)]) is True
    assert (rows(RECEIPTS), rows(NOTES)) == ([("processed", 1, "processed")], [("work",)])


async def test_a_failing_handler_leaves_nothing_and_is_retried(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, "work")
        raise ConnectionError("the bank is closed")

    inbox._runtime.start_worker()
    await eventually(shows(rows, "retrying"))
    assert (rows(RECEIPTS), rows(NOTES)) == ([("retrying", 1, "retrying")], [])


async def test_a_worker_that_lost_its_lease_cannot_commit(inbox: Inbox, rows: Rows, insert: str) -> None:
    leased = await lease(inbox)
    late = inbox._runtime.store.transaction()
    rows(STEAL)
    taken = replace(leased, lease=leased.lease + 1)
    second = inbox._runtime.store.transaction()
    await second.make_tx(is_async=True).execute(insert, "the second worker's")
    assert await second.settle([processed(taken)]) is True
    await late.make_tx(is_async=True).execute(insert, "the zombie's")
    assert await late.settle([processed(leased)]) is False
    assert (rows(RECEIPTS), rows(NOTES)) == ([("processed", 1, "processed")], [("the second worker's",)])


async def test_a_lease_that_is_lost_while_the_handler_runs_undoes_its_work(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    ended = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        rows(STEAL)
        await tx.execute(insert, "the zombie's")
        ended.set()

    inbox._runtime.start_worker()
    await asyncio.wait_for(ended.wait(), 10)
    await inbox.stop()
    assert (rows(RECEIPTS)[0][0], rows(NOTES)) == ("processing", [])
    await inbox.start()


async def test_what_fails_only_at_the_commit_is_the_handlers_failure(inbox: Inbox, rows: Rows, is_sqlite: bool) -> None:
    if is_sqlite:
        pytest.skip("SQLite's foreign keys are off unless the user's own connection turns them on")
    rows("CREATE TABLE child (note TEXT REFERENCES ledger (note) DEFERRABLE INITIALLY DEFERRED)")

    @inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO child (note) VALUES ('an orphan')")

    inbox._runtime.start_worker()
    await eventually(shows(rows, "retrying"))
    assert rows("SELECT * FROM child") == []


async def test_an_error_that_the_handler_swallowed_is_not_marked_as_work(
    inbox: Inbox, rows: Rows, is_sqlite: bool
) -> None:
    """PostgreSQL refuses everything after a failed statement; a mark without the work must not come of it."""
    if is_sqlite:
        pytest.skip("SQLite goes on after a failed statement")

    @inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        try:
            await tx.execute("INSERT INTO no_such_table VALUES (1)")
        except Exception:
            return

    inbox._runtime.start_worker()
    await eventually(shows(rows, "retrying"))


async def test_a_handler_that_ends_its_transaction_itself_is_not_marked(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, "work")
        await tx.execute("ROLLBACK")

    inbox._runtime.start_worker()
    await eventually(shows(rows, "retrying"))
    assert "must not send COMMIT" in rows("SELECT last_error FROM webhook_receipts")[0][0]


# -- tx -------------------------------------------------------------------------------------------------------------


async def test_the_four_verbs_are_the_same_on_both(inbox: Inbox, insert: str) -> None:
    transaction = inbox._runtime.store.transaction()
    tx = transaction.make_tx(is_async=True)
    await tx.execute(insert, "one")
    await tx.execute(insert, "two")
    assert [dict(row) for row in await tx.fetch(NOTES)] == [{"note": "one"}, {"note": "two"}]
    assert (await tx.fetchrow(NOTES))["note"] == "one"
    assert await tx.fetchrow("SELECT note FROM ledger WHERE note = 'three'") is None
    assert await tx.fetchval("SELECT count(*) FROM ledger") == 2
    assert await tx.fetchval("SELECT note FROM ledger WHERE note = 'three'") is None
    await transaction.rollback()


async def test_two_first_statements_at_once_share_one_transaction(inbox: Inbox, rows: Rows, insert: str) -> None:
    """The second must neither wait for the first one's turn nor open a transaction of its own."""
    leased = await lease(inbox)
    transaction = inbox._runtime.store.transaction()
    first, second = await asyncio.wait_for(asyncio.gather(transaction.connection(), transaction.connection()), 5)
    await first.execute(insert, "one")
    await second.execute(insert, "two")
    assert await transaction.settle([processed(leased)]) is True
    assert rows(NOTES) == [("one",), ("two",)]


async def test_a_savepoint_undoes_only_its_own_block(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, "before")
        with pytest.raises(ValueError, match="inner"):
            async with tx.transaction():
                await tx.execute(insert, "undone")
                raise ValueError("inner")
        async with tx.transaction():
            await tx.execute(insert, "kept")
            async with tx.transaction():
                await tx.execute(insert, "kept deeper")

    inbox._runtime.start_worker()
    await eventually(shows(rows, "processed"))
    assert rows(NOTES) == [("before",), ("kept",), ("kept deeper",)]


async def test_a_released_savepoint_is_undone_with_the_handler(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        async with tx.transaction():
            await tx.execute(insert, "released")
        raise ValueError("after it")

    inbox._runtime.start_worker()
    await eventually(shows(rows, "retrying"))
    assert rows(NOTES) == []


async def test_tx_is_dead_once_its_handler_has_ended(inbox: Inbox, rows: Rows, insert: str) -> None:
    kept: list[Any] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, "work")
        kept.append(tx)

    inbox._runtime.start_worker()
    await eventually(shows(rows, "processed"))
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        await kept[0].execute(insert, "too late")
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        async with kept[0].transaction():
            pass
    assert rows(NOTES) == [("work",)]


async def test_a_plain_handler_gets_a_synchronous_tx(inbox: Inbox, rows: Rows, insert: str) -> None:
    threads: list[threading.Thread] = []

    @inbox.on("stripe", "invoice.paid")
    def paid(event: Event, tx: Any) -> None:
        threads.append(threading.current_thread())
        tx.execute(insert, "plain")
        with pytest.raises(ValueError, match="inner"), tx.transaction():
            tx.execute(insert, "undone")
            raise ValueError("inner")
        with tx.transaction():
            tx.execute(insert, f"{tx.fetchval('SELECT count(*) FROM ledger')} before")

    inbox._runtime.start_worker()
    await eventually(shows(rows, "processed"))
    assert rows(NOTES) == [("1 before",), ("plain",)]
    assert threads != [threading.main_thread()]


async def test_a_handler_that_ran_out_of_time_leaves_nothing(inbox: Inbox, rows: Rows, insert: str) -> None:
    late = threading.Event()
    refused: list[BaseException] = []

    @inbox.on("stripe", "invoice.paid", retry=SLOW, timeout="0.3s")
    def paid(event: Event, tx: Any) -> None:
        tx.execute(insert, "work")
        late.wait(10)
        try:
            tx.execute(insert, "too late")
        except TransactionClosed as error:
            refused.append(error)

    inbox._runtime.start_worker()
    await eventually(shows(rows, "retrying"))
    late.set()
    await eventually(lambda: bool(refused))
    assert rows(NOTES) == []


async def test_a_transaction_that_was_given_up_before_its_turn_holds_nothing_later(
    inbox: Inbox, rows: Rows, insert: str, is_sqlite: bool
) -> None:
    """A thread that still waits to begin when its handler's time is up must not begin after that."""
    if not is_sqlite:
        pytest.skip("only SQLite takes turns")
    first, second = inbox._runtime.store.transaction(), inbox._runtime.store.transaction()
    await first.connection()
    waiting = asyncio.ensure_future(second.connection())
    await asyncio.sleep(0)
    await second.rollback()
    await first.rollback()
    with pytest.raises(TransactionClosed):
        await waiting
    third = inbox._runtime.store.transaction()
    await asyncio.wait_for(third.make_tx(is_async=True).execute(insert, "work"), 2)
    await third.rollback()


# -- SQLite's one writer --------------------------------------------------------------------------------------------


@pytest.fixture
def shortly(is_sqlite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write lock may be held for a moment only."""
    if not is_sqlite:
        pytest.skip("PostgreSQL has many writers")
    monkeypatch.setattr(sqlite_handler, "MAX_HANDLER_SECONDS", 0.2)


@pytest.mark.parametrize("goes_on", [True, False], ids=["sends more", "just returns"])
async def test_a_handler_that_keeps_the_door_from_writing_is_rolled_back_and_retried(
    shortly: None, inbox: Inbox, rows: Rows, insert: str, goes_on: bool
) -> None:
    holding, claimed = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, f"{event.id} {event.attempt}")
        if event.id == "evt_1" and event.attempt == 1:
            holding.set()
            await claimed.wait()
            if goes_on:
                await tx.execute(insert, "more")

    inbox._runtime.start_worker()
    await asyncio.wait_for(holding.wait(), 10)
    await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_2")]), 5)
    claimed.set()
    await eventually(lambda: [row[0] for row in rows(RECEIPTS)] == ["processed", "processed"])
    assert rows(NOTES) == [("evt_1 2",), ("evt_2 1",)]
    told = rows("SELECT error FROM webhook_attempts WHERE outcome = 'retrying'")[0][0]
    assert "more than 0.2 s" in told and "another session of your code blocked it" in told


async def test_a_statement_that_takes_too_long_is_interrupted(
    shortly: None, inbox: Inbox, rows: Rows, insert: str
) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, f"attempt {event.attempt}")
        if event.attempt == 1:
            await tx.fetchval(endless)

    inbox._runtime.start_worker()
    await eventually(shows(rows, "processed"))
    assert rows(NOTES) == [("attempt 2",)]
