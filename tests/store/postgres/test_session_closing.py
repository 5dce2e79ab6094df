"""When a handler's PostgreSQL connection is closed instead of reused."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import handler_connections, statuses
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


ONCE = Retry(attempts=1)


async def test_session_is_closed_after_deallocate_all(tenant_inbox: Inbox, database: str) -> None:
    """The handler's writes are committed: the event is processed, and no other handler gets the session."""
    backends: list[int] = []

    @tenant_inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        backends.append(await tx.fetchval("SELECT pg_backend_pid()"))
        await tx.execute("INSERT INTO ledger VALUES ($1)", event.id)
        if event.id in ("evt_1", "evt_3"):
            await tx.execute("DEALLOCATE ALL")
        if event.id == "evt_2":
            await tx.execute("DEALLOCATE ALL; PREPARE mine AS SELECT 1")
        if event.id == "evt_3":
            raise Fail("after that")

    await tenant_inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(5)])
    tenant_inbox._runtime.start_worker()
    await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert statuses(database) == ["processed", "processed", "processed", "failed", "processed"]
    assert run_sql(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_0",), ("evt_1",), ("evt_2",), ("evt_4",)]
    if tenant_inbox._runtime.settings.fast_paths:  # else the driver keeps no statement, and misses none
        assert [backends.index(backend) for backend in backends] == [0, 0, 2, 3, 4]


async def test_commit_is_reported_if_the_message_fails_after_it(store: Store, database: str) -> None:
    await store.claims.insert([make_claim("evt_1")])
    (leased,) = await store.leases.take(1, 60, "worker")
    transaction = store.transaction()
    connection = await transaction.connection()
    await connection.execute("DEALLOCATE ALL")
    assert await transaction.settle([Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")]) is True
    assert statuses(database) == ["processed"]


async def test_missing_prepared_statement_before_the_commit_fails_the_attempt(
    tenant_inbox: Inbox, database: str
) -> None:
    """The same error as after DEALLOCATE ALL, but raised by a deferred trigger: nothing is committed."""
    run_sql(database, "CREATE OR REPLACE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN EXECUTE 'EXECUTE missing'; RETURN NULL; END $$")  # fmt: skip

    @tenant_inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ($1)", event.id)
        await tx.execute("INSERT INTO watched_late VALUES (1)")

    await tenant_inbox._runtime.store.claims.insert([make_claim("evt_1")])
    tenant_inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["failed"])
    assert '"missing" does not exist' in run_sql(database, "SELECT last_error FROM webhook_receipts")[0][0]
    assert run_sql(database, "SELECT count(*) FROM ledger") == [(0,)]


async def test_session_is_closed_if_a_deferred_trigger_changed_its_user(tenant_inbox: Inbox, database: str) -> None:
    """The trigger runs in the message that ends the transaction, so the client learns of it afterwards."""
    run_sql(database, "GRANT SELECT, UPDATE ON webhook_receipts TO other_role")
    run_sql(database, "CREATE OR REPLACE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN SET SESSION AUTHORIZATION other_role; RETURN NULL; END $$")  # fmt: skip
    observed: list[tuple[str, int]] = []

    @tenant_inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        observed.append(tuple(await tx.fetchrow("SELECT session_user, pg_backend_pid()")))
        if event.id == "evt_0":
            await tx.execute("INSERT INTO watched_late VALUES (1)")

    await tenant_inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(3)])
    tenant_inbox._runtime.start_worker()
    await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert statuses(database) == ["processed"] * 3
    users, backends = zip(*observed, strict=True)
    assert len(set(users)) == 1
    if tenant_inbox._runtime.settings.fast_paths:  # else the user is always reset
        assert backends[0] != backends[1] == backends[2]


async def test_session_is_not_cleaned_if_clean_sessions_is_off(make_inbox: Callable[..., Inbox], database: str) -> None:
    """Session state reaches the next handler, but not after a handler that failed."""
    observed: list[str] = []
    inbox = make_inbox(worker=False, concurrency=1, clean_sessions=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def paid(event: Event, tx: Any) -> None:
        observed.append(await tx.fetchval("SELECT coalesce(current_setting('app.who', true), '')"))
        await tx.execute(f"SET app.who = '{event.id}'")
        if event.id == "evt_1":
            raise Fail("after that")

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(4)])
        inbox._runtime.start_worker()
        await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert observed == ["", "evt_0", "", "evt_2"]


async def test_connection_is_not_reused_after_a_cancelled_commit(tenant_inbox: Inbox, database: str) -> None:
    connections = handler_connections(tenant_inbox._runtime.store)
    connection = await connections.take()
    await connection.execute("INSERT INTO watched_late VALUES (1)")
    run_sql(database, "CREATE OR REPLACE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN PERFORM pg_sleep_for('60 s'); RETURN NULL; END $$")  # fmt: skip
    settled = [Settled(1, 1, State.PROCESSED, "processed")]
    committing = asyncio.create_task(connections.commit(connection, settled, and_begin=False))
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    await eventually(lambda: run_sql(database, sleeping) == [(1,)])
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    await connections.roll_back(connection)
    connections.release(connection)
    other = await connections.take()
    assert other is not connection and connection.is_closed()
    await connections.roll_back(other)
    connections.release(other)
