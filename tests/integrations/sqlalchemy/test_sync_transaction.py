"""Transactions on an `Engine`, for plain handlers, which run in a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from oncehook import ConfigurationError, Inbox, TransactionClosed
from tests.support.servers import sqlite_file
from tests.support.waiting import eventually, next_turn

pytestmark = pytest.mark.anyio

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT started() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Any]:
    """Sessions on a synchronous engine of a SQLite file."""
    address = sqlite_file(tmp_path / "inbox.db")
    engine = create_engine(address)
    inbox = Inbox(address, worker=False, engine=engine)
    async with inbox.lifespan():
        yield inbox._runtime.sessions
    engine.dispose()


async def test_session_in_the_event_loop_is_an_error_instead_of_a_deadlock(sessions: Any) -> None:
    transaction = sessions.transaction()
    tx = transaction.make_tx(is_async=False)
    with pytest.raises(ConfigurationError, match="a synchronous session was used in the event loop"):
        tx.execute(text("SELECT 1"))
    await transaction.rollback()


async def test_session_for_an_async_handler_is_an_error(sessions: Any) -> None:
    with pytest.raises(ConfigurationError, match="is an `async def`, but the engine of the inbox is synchronous"):
        sessions.transaction().make_tx(is_async=True)


async def test_rollback_interrupts_the_statement_of_a_thread(sessions: Any) -> None:
    transaction = sessions.transaction()
    tx = transaction.make_tx(is_async=False)
    running = threading.Event()

    def started() -> int:
        running.set()
        return 1

    def run_endless_statement() -> None:
        driver: Any = tx.connection().connection.driver_connection
        driver.create_function("started", 0, started)
        tx.execute(text(ENDLESS))

    thread = asyncio.create_task(asyncio.to_thread(run_endless_statement))
    await eventually(running.is_set, "the thread runs its statement")
    await asyncio.wait_for(transaction.rollback(), 30)
    with pytest.raises((OperationalError, TransactionClosed)):
        await thread


async def test_session_is_closed_after_a_rollback(sessions: Any) -> None:
    transaction = sessions.transaction()
    tx = transaction.make_tx(is_async=False)
    await asyncio.to_thread(tx.execute, text("CREATE TABLE t (x)"))
    assert transaction.used
    await transaction.rollback()
    await transaction.rollback()  # a second rollback does nothing
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        await asyncio.to_thread(tx.execute, text("SELECT 1"))


async def test_statements_of_oncehook_and_of_the_handler_share_one_transaction(sessions: Any) -> None:
    transaction = sessions.transaction()
    tx = transaction.make_tx(is_async=False)
    await asyncio.to_thread(tx.execute, text("CREATE TABLE t (x)"))
    await asyncio.to_thread(tx.execute, text("INSERT INTO t VALUES (7)"))
    rows = await transaction.run_query(lambda sql: "SELECT x FROM t WHERE :input = :input", "{}")
    assert rows == [(7,)]
    await transaction.rollback()


def select_input(sql: Any) -> str:
    return "SELECT :input"


async def test_statement_that_waits_for_the_write_lock_does_not_keep_it_after_a_rollback(sessions: Any) -> None:
    """As that of an effect whose plain handler times out while another handler has the lock."""
    first, second, third = (sessions.transaction() for _ in range(3))
    await asyncio.to_thread(first.make_tx(is_async=False).execute, text("CREATE TABLE t (x)"))
    waiting = asyncio.create_task(second.run_query(select_input, "{}"))
    await next_turn()
    await second.rollback()
    await first.rollback()
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        await asyncio.wait_for(waiting, 30)
    assert await asyncio.wait_for(third.run_query(select_input, "{}"), 30) == [("{}",)]
    await third.rollback()
