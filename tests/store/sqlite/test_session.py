"""A handler's connection on SQLite: whether the next handler may use it."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.sessions import SQLITE_FOUND, SQLITE_LEFT
from tests.support.stores import sqlite_of, statuses
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (note TEXT)")
        run_sql(database, "CREATE TABLE customers (name TEXT)")
        run_sql(database, "INSERT INTO customers VALUES ('of everybody')")
        yield inbox


@pytest.mark.parametrize("left", SQLITE_LEFT)
async def test_connection_state_does_not_reach_the_next_handler(inbox: Inbox, database: str, left: str) -> None:
    observed: list[dict[str, Any]] = []

    @inbox.on("stripe", "invoice.paid")
    async def probe(event: Event, tx: Any) -> None:
        observed.append({name: await tx.fetchval(sql) for name, sql in SQLITE_FOUND.items()})
        await tx.execute("INSERT INTO ledger VALUES (?)", event.id)

    @inbox.on("stripe", "charge.paid")
    async def leave(event: Event, tx: Any) -> None:
        for statement in SQLITE_LEFT[left]:
            await tx.execute(statement)
        if event.id == "evt_3":
            raise Fail("after all that")

    types = ["invoice.paid", "charge.paid", "invoice.paid", "charge.paid", "invoice.paid"]
    for number, type in enumerate(types):
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}", type=type)])
        if number == 0:
            inbox._runtime.start_worker()
        assert inbox._runtime.worker is not None
        inbox._runtime.worker.wake()
        await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert statuses(database) == ["processed", "processed", "processed", "failed", "processed"]
    assert observed == [observed[0]] * 3
    assert observed[0]["customer"] == "of everybody" and observed[0]["temporary"] == observed[0]["last_number"] == 0
    notes = [row[0] for row in run_sql(database, "SELECT note FROM ledger")]
    assert [note for note in notes if note != "of A"] == ["evt_0", "evt_2", "evt_4"]


ONCE = Retry(attempts=1)


async def test_handler_that_makes_its_connection_read_only_is_the_only_one_that_fails(
    inbox: Inbox, database: str
) -> None:
    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES (?)", event.id)
        if event.id == "evt_0":
            await tx.execute("PRAGMA query_only = ON")

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(3)])
    inbox._runtime.start_worker()
    await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert statuses(database) == ["failed", "processed", "processed"]
    assert run_sql(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_1",), ("evt_2",)]


async def test_event_is_processed_if_the_handler_has_a_temporary_table_of_the_same_name(
    inbox: Inbox, database: str
) -> None:
    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("CREATE TEMP TABLE webhook_receipts AS SELECT * FROM main.webhook_receipts")
        await tx.execute("INSERT INTO ledger VALUES (?)", event.id)

    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed"])
    assert run_sql(database, "SELECT note FROM ledger") == [("evt_1",)]


@pytest.mark.parametrize(
    ("ending", "is_kept"),
    [
        (["ROLLBACK", "BEGIN"], False),
        (["COMMIT", "BEGIN IMMEDIATE"], True),
        (["END"], True),
        (["INSERT OR ROLLBACK INTO customers (rowid, name) VALUES (1, 'twice')"], False),
    ],
)
@pytest.mark.parametrize("batch", [None, 2])
async def test_handler_that_ends_or_replaces_its_transaction_fails(
    inbox: Inbox, database: str, ending: list[str], is_kept: bool, batch: int | None
) -> None:
    async def end(events: Any, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ('before')")
        for statement in [*ending, "INSERT INTO ledger VALUES ('after')"]:
            try:
                await tx.execute(statement)
            except Exception:
                pass  # as a handler may that wants to go on

    inbox.on("stripe", "invoice.paid", retry=ONCE, batch=batch)(end)
    await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
    inbox._runtime.start_worker()
    await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert statuses(database) == ["failed", "failed"]
    [error] = {row[0] for row in run_sql(database, "SELECT last_error FROM webhook_receipts")}
    assert "the handler ended its transaction itself" in error
    assert set(run_sql(database, "SELECT note FROM ledger")) == ({("before",)} if is_kept else set())


async def test_plain_statements_keep_the_connection(inbox: Inbox, database: str) -> None:
    """Rows, savepoints, JSON and recursive queries leave the connection unchanged, so it is reused."""
    connections: set[int] = set()

    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def paid(event: Event, tx: Any) -> None:
        async with tx.transaction():
            await tx.execute("INSERT INTO ledger SELECT value FROM json_each('[1, 2]')")
        await tx.execute("UPDATE ledger SET note = lower(note) WHERE note IN (SELECT name FROM customers)")
        await tx.fetch("WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 9) SELECT x FROM n")
        await tx.execute("DELETE FROM ledger WHERE note = '1'")
        thread = sqlite_of(inbox._runtime.store).handler_thread
        assert thread is not None
        connections.add(id(thread.connection))

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(5)])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed"] * 5)
    assert len(connections) == 1
