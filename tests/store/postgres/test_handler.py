"""Handlers' transactions on PostgreSQL: connections, slots, and transactions that are begun ahead."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.concurrency.clock import SYSTEM
from oncehook.store.postgres.handler import MAX_AHEAD_SECONDS
from oncehook.store.postgres.session import HandlerConnection
from oncehook.store.transaction import TransactionClosed
from tests.support.events import Rows, make_claim
from tests.support.proxy import proxied
from tests.support.servers import run_sql
from tests.support.stores import handler_connections, open_store, statuses
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio


async def test_batch_with_one_lost_lease_commits_nothing_and_runs_again_one_by_one(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    """The events run again one by one, except the event that another worker has leased."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    ran: list[int] = []

    @inbox.on("stripe", "invoice.paid", batch=3)
    async def paid(events: list[Event], tx: Any) -> None:
        ran.append(len(events))
        for event in events:
            await tx.execute("INSERT INTO ledger VALUES ($1)", event.id)
        if len(events) == 3:
            taken = "UPDATE webhook_receipts SET lease = lease + 1 WHERE event_id = 'evt_2'"
            await asyncio.to_thread(run_sql, database, taken)

    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (note text PRIMARY KEY)")
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(1, 4)])
        inbox._runtime.start_worker()
        await eventually(lambda: len(ran) == 4 and statuses(database).count("processed") == 2)
        assert inbox._runtime.worker is not None
        await inbox._runtime.worker.stop()
    assert statuses(database) == ["processed", "processing", "processed"]
    assert run_sql(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_1",), ("evt_3",)]


async def test_cancelled_begin_releases_its_slot(database: str) -> None:
    async with (
        proxied(database) as (proxy, through),
        open_store(through, concurrency=1, claim_timeout=5.0) as store,
    ):
        connections = handler_connections(store)
        for is_connected in (False, True):
            proxy.stall()
            taking = asyncio.create_task(connections.take())
            await eventually(connections._slots.locked)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            assert taking.cancelled(), is_connected
            proxy.flow()
            connection = await asyncio.wait_for(connections.take(), 30)
            await connections.roll_back(connection)
            connections.release(connection)


async def test_transaction_that_was_abandoned_takes_no_connection(database: str) -> None:
    """A thread that continues after its handler's timeout may still request an effect."""
    async with open_store(database, concurrency=1) as store:
        abandoned = store.transaction()
        await abandoned.rollback()
        with pytest.raises(TransactionClosed, match="after its handler had ended"):
            await abandoned.run_query(lambda sql: "SELECT $1", "{}")
        connection = await asyncio.wait_for(handler_connections(store).take(), 30)
        handler_connections(store).release(connection)


async def test_no_transaction_stays_open_after_the_last_handler(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make_inbox(worker=False, concurrency=8)
    inbox.source("stripe", secrets=["whsec_test"])
    ahead: list[bool] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("SELECT 1")

    async with inbox.lifespan():
        connections = handler_connections(inbox._runtime.store)
        release = connections.release

        def watch_release(connection: HandlerConnection) -> None:
            ahead.append(connection.begun_at is not None)
            release(connection)

        connections.release = watch_release  # type: ignore[method-assign]
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:03d}") for number in range(100)])
        inbox._runtime.start_worker()
        await eventually(lambda: set(statuses(database)) == {"processed"})
        idle = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        await eventually(lambda: run_sql(database, idle) == [(0,)])
    assert any(ahead) is inbox._runtime.settings.fast_paths


async def test_transaction_begun_too_long_ahead_is_begun_again(inbox: Inbox) -> None:
    connections = handler_connections(inbox._runtime.store)
    early = await connections.take()
    begun = await early.fetchval("SELECT now()")
    early.begun_at = SYSTEM.monotonic() - 2 * MAX_AHEAD_SECONDS
    connections.release(early)
    late = await connections.take()
    assert late is early
    assert await late.fetchval("SELECT now()") > begun
    await connections.roll_back(late)
    connections.release(late)


SLOW = Retry(attempts=5, first=3600, most=3600)


async def test_error_of_a_deferred_trigger_fails_the_attempt(inbox: Inbox, database: str) -> None:
    run_sql(
        database,
        "CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 / 0; RETURN NULL; END $$",
    )
    run_sql(
        database,
        "CREATE CONSTRAINT TRIGGER divided AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION divide()",
    )

    @inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ('one')")

    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["retrying"])
    assert run_sql(database, "SELECT last_error FROM webhook_receipts") == [("DivisionByZeroError: division by zero",)]
    assert run_sql(database, "SELECT * FROM ledger") == []


@pytest.mark.parametrize("setting", ["on", "off"])
async def test_event_is_processed_under_any_string_setting_of_the_session(
    make_inbox: Callable[..., Inbox], database: str, setting: str
) -> None:
    version = "it's \\' 1; \\\\'"
    inbox = make_inbox(worker=False, version=version)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(f"SET standard_conforming_strings = {setting}")

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        inbox._runtime.start_worker()
        await eventually(lambda: statuses(database) == ["processed"])
    assert run_sql(database, "SELECT version FROM webhook_attempts") == [(version,)]


async def test_busy_handlers_do_not_block_claims(make_inbox: Callable[..., Inbox], database: str) -> None:
    """A claim does not wait for a handler, even if all handlers hold a transaction."""
    inbox = make_inbox(worker=False, concurrency=30, claim_timeout="2s")
    inbox.source("stripe", secrets=["whsec_test"])
    inside, go_on = asyncio.Semaphore(0), asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("SELECT 1")
        inside.release()
        await go_on.wait()

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:03d}") for number in range(30)])
        inbox._runtime.start_worker()
        async with asyncio.timeout(20):
            for _ in range(30):
                await inside.acquire()
        await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_999")]), 30)
        go_on.set()
        await eventually(lambda: set(statuses(database)) == {"processed"})


async def test_error_at_the_commit_fails_the_attempt(ledger_inbox: Inbox, rows: Rows) -> None:
    rows("CREATE TABLE child (note TEXT REFERENCES ledger (note) DEFERRABLE INITIALLY DEFERRED)")

    @ledger_inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO child (note) VALUES ('an orphan')")

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "retrying", 1))
    assert rows("SELECT * FROM child") == []


async def test_event_is_not_processed_if_the_handler_swallowed_a_database_error(
    ledger_inbox: Inbox, rows: Rows
) -> None:
    """PostgreSQL rejects every statement after a failed one, so the writes of the handler are lost."""

    @ledger_inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        try:
            await tx.execute("INSERT INTO no_such_table VALUES (1)")
        except Exception:
            return

    ledger_inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "retrying", 1))
