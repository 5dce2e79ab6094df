"""Rehearsals on the user's engine: they show the handler's statements and roll them back."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncehook import Effect, Event, Inbox, SyncEvent
from oncehook.model.receipt import Filter
from oncehook.operations.rehearse import Rehearsal, rehearse
from oncehook.testing import deliver
from tests.support.engines import INVOICES, RECEIPTS, Invoice, by_kind
from tests.support.events import Rows, stripe_body

pytestmark = pytest.mark.anyio


async def rehearsed(inbox: Inbox) -> Rehearsal:
    (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
    sessions: Any = inbox._runtime.sessions
    return await rehearse(inbox._runtime.store, inbox._runtime.handlers, receipt, sessions.transaction)


async def test_rehearsal_shows_the_statements_and_rolls_them_back(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(text("INSERT INTO invoices VALUES ('in_0', 'open')"))
        try:
            with session.begin_nested():
                session.execute(text("DELETE FROM invoices"))
                raise LookupError
        except LookupError:
            session.add(Invoice(id=event.id, status="only added"))

    on_paid(paid)
    rehearsal = await rehearsed(inbox)
    assert rehearsal.error is None
    shown = [
        (statement.sql.split()[0], statement.rows, statement.undone, statement.error)
        for statement in rehearsal.statements
    ]
    assert shown == [("INSERT", 1, False, None), ("DELETE", 1, True, None), ("INSERT", 1, False, None)]
    assert rehearsal.statements[-1].args == ("evt_1", "only added")
    assert (rows(INVOICES), rows(RECEIPTS)) == ([], [("received", 0)])


async def test_rehearsal_does_not_show_statements_of_oncehook(inbox: Inbox, rows: Rows, kind: str) -> None:
    @inbox.effect
    def mail(effect: Effect) -> None: ...

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        await event.effect("mail:in_1", mail)
        await tx.execute(text("SELECT 1"))

    def plain(event: SyncEvent, tx: Session) -> None:
        event.effect("mail:in_1", mail)
        tx.execute(text("SELECT 1"))

    inbox.on("stripe", "invoice.paid")(by_kind(kind, asynchronous, plain))
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
    rehearsal = await inbox._runtime.rehearse(receipt)
    assert rehearsal.error is None and [statement.sql for statement in rehearsal.statements] == ["SELECT 1"]
    assert [(effect["key"], effect["new"]) for effect in rehearsal.effects] == [("mail:in_1", True)]


async def test_rehearsal_shows_the_statement_that_failed(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(text("INSERT INTO invoices VALUES ('in_0', 'open')"))
        session.execute(text("SELECT * FROM nowhere"))

    on_paid(paid)
    rehearsal = await rehearsed(inbox)
    assert rehearsal.error is not None and "nowhere" in rehearsal.error
    assert [statement.error for statement in rehearsal.statements] == [None, rehearsal.error]
    assert rows(INVOICES) == []


async def test_rehearsal_on_an_inbox_that_is_not_running_does_not_change_the_engine(
    make_inbox: Callable[..., Inbox], inbox: Inbox, engine: Any, rows: Rows, kind: str
) -> None:
    unstarted = make_inbox(worker=False, engine=engine)
    unstarted.source("stripe", secrets=["whsec_test"])

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        await tx.execute(text("SELECT 1"))

    def plain(event: SyncEvent, tx: Session) -> None:
        tx.execute(text("SELECT 1"))

    unstarted.on("stripe", "invoice.paid")(by_kind(kind, asynchronous, plain))
    rows("UPDATE webhook_receipts SET status = 'processed'")
    pool = engine.pool
    listeners = len(list(pool.dispatch.checkin))
    for _ in range(2):
        [rehearsal] = await unstarted.rehearse("evt_1")
        assert rehearsal.error is None and [statement.sql for statement in rehearsal.statements] == ["SELECT 1"]
    assert engine.pool is pool  # one that is disposed of gets another
    assert len(list(pool.dispatch.checkin)) == listeners


async def test_rehearsed_handler_cannot_commit_its_session(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(text("INSERT INTO invoices VALUES ('in_0', 'open')"))
        session.commit()

    on_paid(paid)
    rehearsal = await rehearsed(inbox)
    assert rehearsal.error is not None and "a handler may not call" in rehearsal.error
    assert rows(INVOICES) == []
