"""The processor runs a handler and settles its receipt, on both databases."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry, RetryLater, SyncEvent
from oncehook.testing import drain
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import HISTORY, QUICK, STATES, claim, receipts_are

pytestmark = pytest.mark.anyio


async def test_the_handlers_writes_and_the_processed_status_commit_together(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, event.type)

    await claim(inbox, *(f"evt_{n:02d}" for n in range(40)))
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 40))
    assert sorted(rows("SELECT event_id FROM ledger")) == [(f"evt_{n:02d}",) for n in range(40)]
    assert rows("SELECT count(*) FROM webhook_attempts WHERE outcome = 'processed'") == [(40,)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE processed_at IS NULL") == [(0,)]


async def test_a_failed_attempt_is_rolled_back_and_retried(inbox: Inbox, rows: Rows, insert: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, f"attempt {event.attempt}")
        if event.attempt < 3:
            raise ConnectionError("the bank is closed")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows("SELECT event_id, note FROM ledger") == [("evt_1", "attempt 3")]
    failed = (
        (1, "retrying", "ConnectionError: the bank is closed"),
        (2, "retrying", "ConnectionError: the bank is closed"),
    )
    assert rows(HISTORY) == [*failed, (3, "processed", None)]


async def test_a_handler_that_always_fails_makes_a_dead_letter_after_its_attempts(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event) -> None:
        raise ValueError("never")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "failed", 1))
    assert rows(STATES) == [("evt_1", "failed", 3, "failed", "ValueError: never")]
    assert rows("SELECT event_id, last_error, attempts FROM webhook_dlq") == [("evt_1", "ValueError: never", 3)]


async def test_fail_makes_a_dead_letter_immediately_and_retry_later_waits(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event) -> None:
        raise Fail("no such customer") if event.id == "evt_1" else RetryLater("not yet", after="1h")

    await claim(inbox, "evt_1", "evt_2")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "failed", 1))
    await eventually(receipts_are(rows, "retrying", 1))
    assert [row[:3] for row in rows(STATES)] == [("evt_1", "failed", 1), ("evt_2", "retrying", 1)]
    due = await inbox._runtime.store.leases.next_due()
    assert due is not None
    assert 3500 < due < 4000


async def test_a_receipt_without_a_handler_is_released_without_an_attempt(inbox: Inbox, rows: Rows) -> None:
    await claim(inbox, "evt_1")
    (leased,) = await inbox._runtime.store.leases.take(1, 30, "test")
    assert await inbox._runtime.start_processor().process(leased) is None
    assert rows(STATES) == [("evt_1", "received", 0, None, None)]


async def test_a_plain_handler_runs_in_a_thread_with_a_synchronous_transaction(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    @inbox.on("stripe", "invoice.paid")
    def paid(event: SyncEvent, tx: Any) -> None:
        tx.execute(insert, event.id, tx.fetchval("SELECT 'plain'"))

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows("SELECT event_id, note FROM ledger") == [("evt_1", "plain")]


async def test_plain_handlers_get_as_many_threads_as_the_concurrency_setting(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    """All handlers meet at the barrier, so no shared thread pool limits them."""
    inbox = make_inbox(worker=False, concurrency=40)
    inbox.source("stripe", secrets=["whsec_test"])
    all_here = threading.Barrier(40, timeout=30)
    names: set[str] = set()
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    def paid(event: SyncEvent) -> None:
        names.add(threading.current_thread().name)
        assert variable.get() == "the test"
        all_here.wait()

    async with inbox.lifespan():
        await claim(inbox, *(f"evt_{n:02d}" for n in range(40)))
        variable.set("the test")
        inbox._runtime.start_worker()
        await eventually(receipts_are(rows, "processed", 40))
    assert len(names) == 40
    assert all(name.startswith("oncehook-handler") for name in names)


async def test_an_attempt_records_the_first_line_of_an_error_and_no_row_data(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    canary = "-".join(("a", "row", "of", "theirs"))  # not a literal, which a traceback would show
    rows("CREATE UNIQUE INDEX once ON ledger (note)")
    rows(f"INSERT INTO ledger VALUES ('evt_0', '{canary}')")

    class Unsayable(Exception):
        def __str__(self) -> str:
            raise ValueError(canary)

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def paid(event: Event, tx: Any) -> None:
        if event.id == "evt_1":
            await tx.execute(insert, event.id, canary)
        raise Unsayable if event.id == "evt_2" else ValueError(f"1 error\n  input_value={canary}")

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "failed", 3))
    errors = rows("SELECT last_error FROM webhook_receipts ORDER BY event_id")
    assert "unique" in errors[0][0].lower()
    assert errors[1:] == [("Unsayable: ",), ("ValueError: 1 error",)]
    assert canary not in str(rows("SELECT error, traceback FROM webhook_attempts") + errors)


async def test_a_cancelled_handler_is_released_without_an_attempt_when_the_worker_stops(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    inside = asyncio.Event()

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, f"attempt {event.attempt}")
        try:
            if not inside.is_set():
                inside.set()
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("as many libraries put it") from None

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await asyncio.wait_for(inside.wait(), 20)
    await inbox._runtime.worker.stop(grace=0.05)  # type: ignore[union-attr]
    assert rows(STATES) == [("evt_1", "received", 0, None, None)]
    assert rows("SELECT * FROM ledger") == rows(HISTORY) == []
    inbox._runtime.worker = None
    await drain(inbox)
    assert rows("SELECT * FROM ledger") == [("evt_1", "attempt 1")]


async def test_a_worker_that_lost_its_lease_cannot_commit(inbox: Inbox, rows: Rows, insert: str) -> None:
    taken = asyncio.Event()
    go_on = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        if event.attempt == 1:
            taken.set()
            await go_on.wait()
        await tx.execute(insert, event.id, f"attempt {event.attempt}")

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await asyncio.wait_for(taken.wait(), 10)
    rows("UPDATE webhook_receipts SET status = 'retrying', lease_until = NULL")  # as a rescuer would
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(receipts_are(rows, "processed", 1))
    go_on.set()
    await inbox._runtime.worker.stop()  # type: ignore[union-attr]
    assert rows("SELECT note FROM ledger") == [("attempt 2",)]
    assert rows(HISTORY) == [(2, "processed", None)]


async def test_a_hanging_handler_is_cancelled_at_its_timeout_and_retried(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid", timeout="0.2s", retry=QUICK)
    async def paid(event: Event) -> None:
        if event.attempt == 1:
            await asyncio.Event().wait()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    assert rows(HISTORY)[0] == (1, "retrying", "TimeoutError: the handler did not finish within 0.2 s")
