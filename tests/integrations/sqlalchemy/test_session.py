"""The session of a handler: only Oncehook ends its transaction, savepoints work, and it closes with the handler."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from oncehook import Event, Inbox, Retry
from oncehook.store.transaction import TransactionClosed
from tests.support.engines import INVOICES, Invoice, last_error, work_until
from tests.support.events import Rows

pytestmark = pytest.mark.anyio

SLOW = Retry(attempts=5, first=3600, most=3600)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_handler_that_replaces_its_transaction_fails(
    inbox: Inbox, rows: Rows, on_paid: Any, is_sqlite: bool, ending: str
) -> None:
    def replace(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        for statement in [ending, "BEGIN"] if is_sqlite else [f"{ending} AND CHAIN"]:
            session.connection().exec_driver_sql(statement)

    on_paid(replace, retry=Retry(attempts=1))
    await work_until(inbox, rows, "failed")
    assert "the handler ended its transaction itself" in last_error(rows)
    assert rows(INVOICES) == ([("evt_1", "paid")] if ending == "COMMIT" else [])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_handler_that_ends_its_transaction_fails(inbox: Inbox, rows: Rows, on_paid: Any, ending: str) -> None:
    """Without a transaction some drivers commit each statement by itself, and so the processed status."""

    def end(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        session.connection().exec_driver_sql(ending)

    on_paid(end, retry=Retry(attempts=1))
    await work_until(inbox, rows, "failed")
    assert "the handler ended its transaction itself" in last_error(rows)
    assert rows(INVOICES) == ([("evt_1", "paid")] if ending == "COMMIT" else [])


async def test_released_savepoint_is_rolled_back_with_the_handler(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    """SQLite's driver emits no BEGIN before a SAVEPOINT: by itself, the RELEASE would commit."""

    def paid(event: Event, session: Session) -> None:
        with session.begin_nested():
            session.add(Invoice(id="in_released", status="paid"))
        raise ValueError("after it")

    on_paid(paid, retry=SLOW)
    await work_until(inbox, rows, "retrying")
    assert rows(INVOICES) == []


async def test_savepoint_rolls_back_only_its_own_block(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        with pytest.raises(ValueError, match="inner"), session.begin_nested():
            session.add(Invoice(id="in_undone", status="paid"))
            session.flush()
            raise ValueError("inner")
        with session.begin_nested():
            session.add(Invoice(id="in_kept", status="paid"))
        session.add(Invoice(id="in_outer", status="paid"))

    on_paid(paid)
    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("in_kept", "paid"), ("in_outer", "paid")]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("verb", ["commit", "rollback", "close", "begin"])
async def test_session_methods_that_end_the_transaction_are_an_error(
    inbox: Inbox, rows: Rows, on_paid: Any, verb: str
) -> None:
    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        getattr(session, verb)()

    on_paid(paid, retry=SLOW)
    await work_until(inbox, rows, "retrying")
    assert f"a handler may not call tx.{verb}()" in last_error(rows)
    assert rows(INVOICES) == []


async def test_handler_that_sends_rollback_in_sql_is_not_processed(
    inbox: Inbox, rows: Rows, is_sqlite: bool, on_paid: Any
) -> None:
    if not is_sqlite:
        pytest.skip("PostgreSQL's drivers do not say")

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        session.execute(text("ROLLBACK"))

    on_paid(paid, retry=SLOW)
    await work_until(inbox, rows, "retrying")


async def test_session_is_closed_when_its_handler_has_ended(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    sessions: list[Session] = []

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        sessions.append(session)

    on_paid(paid)
    await work_until(inbox, rows, "processed")
    uses: list[Callable[[Session], object]] = [
        lambda session: session.add(Invoice(id="in_late", status="paid")),
        lambda session: session.execute(select(Invoice)),
        lambda session: session.get(Invoice, "evt_1"),
        lambda session: session.begin_nested(),
        lambda session: session.connection(),
    ]
    for use in uses:
        with pytest.raises(TransactionClosed, match="after its handler had ended"):
            use(sessions[0])
