"""A handler's transaction on a SQLAlchemy session: its work commits with the processed status, or not at all."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncehook import Event, Inbox, Retry, SyncEvent
from oncehook.store.sqlite import handler as sqlite_handler
from oncehook.store.transaction import TransactionClosed
from tests.support.engines import (
    INVOICES,
    RECEIPTS,
    Invoice,
    by_kind,
    last_error,
    work_until,
)
from tests.support.events import Rows, make_claim
from tests.support.waiting import SLOW_STATEMENT, eventually, hang
from tests.support.work import QUICK

pytestmark = pytest.mark.anyio

SLOW = Retry(attempts=5, first=3600, most=3600)
STEAL = "UPDATE webhook_receipts SET lease = lease + 1 RETURNING id"


async def test_orm_work_and_the_processed_status_commit_together(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    seen: list[Any] = []

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="open"))
        session.flush()
        seen.append((rows(RECEIPTS)[0][0], rows(INVOICES)))
        invoice = session.scalars(select(Invoice)).one()
        invoice.status = "paid"

    on_paid(paid)
    await work_until(inbox, rows, "processed")
    assert seen == [("processing", [])]
    assert rows(INVOICES) == [("evt_1", "paid")]
    assert rows("SELECT number, outcome FROM webhook_attempts") == [(1, "processed")]


async def test_objects_that_are_only_added_are_flushed_before_the_commit(
    inbox: Inbox, rows: Rows, on_paid: Any
) -> None:
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")))
    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("evt_1", "paid")]


async def test_concurrent_handlers_have_separate_sessions(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")))
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:02d}") for number in range(40)])
    inbox._runtime.start_worker()
    await eventually(lambda: {row[0] for row in rows(RECEIPTS)} == {"processed"})
    assert len(rows(INVOICES)) == 41


async def test_failed_handler_is_rolled_back(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        raise ConnectionError("the bank is closed")

    on_paid(paid, retry=SLOW)
    await work_until(inbox, rows, "retrying")
    assert rows(INVOICES) == []


async def test_error_in_the_last_flush_fails_the_attempt(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    rows("INSERT INTO invoices VALUES ('evt_1', 'here before') RETURNING id")
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")), retry=SLOW)
    await work_until(inbox, rows, "retrying")
    assert "IntegrityError" in last_error(rows)
    assert rows(INVOICES) == [("evt_1", "here before")]


async def test_handler_that_ignores_a_failed_flush_is_not_processed(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    rows("INSERT INTO invoices VALUES ('evt_1', 'here before') RETURNING id")

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id="in_2", status="paid"))
        session.flush()
        session.add(Invoice(id="evt_1", status="paid"))
        with pytest.raises(IntegrityError):
            session.flush()

    on_paid(paid, retry=SLOW)
    await work_until(inbox, rows, "retrying")
    assert rows(INVOICES) == [("evt_1", "here before")]


async def test_worker_that_lost_its_lease_cannot_commit(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    ended = threading.Event()

    def paid(event: Event, session: Session) -> None:
        rows(STEAL)
        session.add(Invoice(id=event.id, status="the zombie's"))
        session.flush()
        ended.set()

    on_paid(paid)
    inbox._runtime.start_worker()
    await eventually(ended.is_set)
    await inbox.stop()
    assert (rows(RECEIPTS)[0][0], rows(INVOICES)) == ("processing", [])
    await inbox.start()


async def test_events_of_a_batch_share_one_session(inbox: Inbox, rows: Rows, kind: str) -> None:
    sizes: list[int] = []

    async def asynchronous(events: list[Event], tx: AsyncSession) -> None:
        sizes.append(len(events))
        tx.add_all([Invoice(id=event.id, status="paid") for event in events])

    def plain(events: list[SyncEvent], tx: Session) -> None:
        sizes.append(len(events))
        tx.add_all([Invoice(id=event.id, status="paid") for event in events])

    inbox.on("stripe", "invoice.paid", batch=10)(by_kind(kind, asynchronous, plain))
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(2, 9)])
    inbox._runtime.start_worker()
    await eventually(lambda: {row[0] for row in rows(RECEIPTS)} == {"processed"})
    assert (sizes, len(rows(INVOICES))) == ([8], 8)


async def test_session_takes_no_connection_before_its_first_use(
    inbox: Inbox, rows: Rows, engine: Any, kind: str
) -> None:
    held: list[int] = []
    handled = threading.Event()

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        held.append(engine.pool.checkedout())
        handled.set()

    def plain(event: SyncEvent, tx: Session) -> None:
        held.append(engine.pool.checkedout())
        handled.set()

    inbox.on("stripe", "invoice.paid")(by_kind(kind, asynchronous, plain))
    await work_until(inbox, rows, "processed")
    assert held == [0]


async def test_every_connection_returns_to_the_pool(inbox: Inbox, rows: Rows, engine: Any, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(select(func.count()).select_from(Invoice))
        if event.attempt == 1:
            raise ValueError("once")

    on_paid(paid, retry=QUICK)
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:02d}") for number in range(40)])
    inbox._runtime.start_worker()
    await eventually(lambda: {row[0] for row in rows(RECEIPTS)} == {"processed"})
    await inbox.stop()
    assert engine.pool.checkedout() == 0
    await inbox.start()


async def test_handler_that_exceeds_its_timeout_is_rolled_back(
    inbox: Inbox, rows: Rows, engine: Any, kind: str
) -> None:
    late = threading.Event()
    errors: list[BaseException] = []

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        await tx.flush()
        try:
            await hang()
        finally:
            errors.append(TimeoutError())

    def plain(event: SyncEvent, tx: Session) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        tx.flush()
        late.wait(20)
        try:
            tx.execute(select(Invoice))
        except TransactionClosed as error:
            errors.append(error)

    inbox.on("stripe", "invoice.paid", retry=SLOW, timeout="0.3s")(by_kind(kind, asynchronous, plain))
    await work_until(inbox, rows, "retrying")
    late.set()
    await eventually(lambda: bool(errors))
    assert (rows(INVOICES), engine.pool.checkedout()) == ([], 0)


async def test_statement_of_a_handler_that_exceeds_its_timeout_is_interrupted(
    inbox: Inbox, rows: Rows, is_sqlite: bool, on_paid: Any
) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        session.execute(text(endless if is_sqlite else SLOW_STATEMENT))

    on_paid(paid, retry=SLOW, timeout="0.3s")
    await work_until(inbox, rows, "retrying")
    assert rows(INVOICES) == []


@pytest.mark.parametrize("goes_on", [True, False], ids=["sends more", "just returns"])
async def test_sqlite_handler_that_blocks_the_receiver_is_rolled_back_and_retried(
    inbox: Inbox, rows: Rows, is_sqlite: bool, kind: str, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    if not is_sqlite:
        pytest.skip("PostgreSQL has many writers")
    monkeypatch.setattr(sqlite_handler, "MAX_HANDLER_SECONDS", 0.2)
    holding, claimed = threading.Event(), threading.Event()

    def started(event: Event | SyncEvent, session: Session) -> None:
        session.add(Invoice(id=f"{event.id} {event.attempt}", status="paid"))
        session.flush()

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        await tx.run_sync(lambda session: started(event, session))
        if event.id == "evt_1" and event.attempt == 1:
            holding.set()
            await eventually(claimed.is_set)
            if goes_on:
                await tx.execute(select(Invoice))

    def plain(event: SyncEvent, tx: Session) -> None:
        started(event, tx)
        if event.id == "evt_1" and event.attempt == 1:
            holding.set()
            claimed.wait(10)
            if goes_on:
                tx.execute(select(Invoice))

    inbox.on("stripe", "invoice.paid", retry=QUICK)(by_kind(kind, asynchronous, plain))
    inbox._runtime.start_worker()
    await eventually(holding.is_set)
    await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_2")]), 30)
    claimed.set()
    await eventually(lambda: [row[0] for row in rows(RECEIPTS)] == ["processed", "processed"])
    assert rows(INVOICES) == [("evt_1 2", "paid"), ("evt_2 1", "paid")]
    error = rows("SELECT error FROM webhook_attempts WHERE outcome = 'retrying'")[0][0]
    assert "more than 0.2 s" in error and "another session of your code blocked it" in error


async def test_stored_error_contains_no_parameters_of_a_statement(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        invoices = [{"id": "in_0", "status": "CANARY"}, {"id": "in_0", "status": "CANARY"}]
        for row in invoices:
            session.execute(text("INSERT INTO invoices VALUES (:id, :status)"), row)

    on_paid(paid, retry=SLOW)
    await work_until(inbox, rows, "retrying")
    assert "IntegrityError" in last_error(rows)
    assert "CANARY" not in last_error(rows) and "in_0" not in last_error(rows)
    assert "CANARY" not in rows("SELECT error FROM webhook_attempts")[0][0]
