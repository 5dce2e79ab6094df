"""Transactions on an `AsyncEngine`."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import aiosqlite
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from oncehook import Event, Inbox
from oncehook.integrations.sqlalchemy.async_transaction import interrupt_and_roll_back
from tests.support.engines import INVOICES, Invoice, work_until
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import QUICK

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["async"])]

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT started() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


async def test_savepoint_of_an_async_session_is_rolled_back_with_the_handler(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: AsyncSession) -> None:
        async with tx.begin_nested():
            tx.add(Invoice(id=f"in_{event.attempt}", status="paid"))
        if event.attempt == 1:
            raise ValueError("after the savepoint")

    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("in_2", "paid")]


async def test_handler_gets_one_session_whose_queries_share_a_transaction(inbox: Inbox, rows: Rows) -> None:
    counts: list[int] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: AsyncSession) -> None:
        await tx.execute(text("INSERT INTO invoices VALUES ('in_1', 'paid')"))
        counts.append((await tx.execute(text("SELECT count(*) FROM invoices"))).scalar_one())
        counts.append(len(rows(INVOICES)))

    await work_until(inbox, rows, "processed")
    assert counts == [1, 0], "only the handler may see its row before the commit"


async def test_running_statement_of_aiosqlite_is_interrupted_and_rolled_back(kind: str, tmp_path: Path) -> None:
    async with aiosqlite.connect(tmp_path / "a.db") as connection:
        await connection.execute("CREATE TABLE t (x)")
        await connection.execute("INSERT INTO t VALUES (1)")
        running = threading.Event()

        def started() -> int:
            running.set()
            return 1

        await connection.create_function("started", 0, started)
        query = asyncio.create_task(connection.execute_fetchall(ENDLESS))
        await eventually(running.is_set, "the statement runs")
        await interrupt_and_roll_back(connection)
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            await query
        assert not connection.in_transaction
        assert list(await connection.execute_fetchall("SELECT * FROM t")) == []


async def test_connection_that_is_already_closed_needs_no_rollback(kind: str, tmp_path: Path) -> None:
    connection = await aiosqlite.connect(tmp_path / "a.db")
    await connection.close()
    await interrupt_and_roll_back(connection)
