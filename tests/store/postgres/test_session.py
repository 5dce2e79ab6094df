"""Nothing that a handler leaves in its PostgreSQL session reaches another handler, whatever statement left it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.postgres.database import PostgresDatabase
from oncehook.store.postgres.handler import HandlerConnections
from oncehook.store.store import Store
from tests.store.postgres.test_handler import states
from tests.support.events import make_claim
from tests.support.servers import Postgres, ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ONCE = Retry(attempts=1)
ENTER = "set_config('search_path', 'tenant_a, public', false)"
OBJECTS = [
    "CREATE TABLE IF NOT EXISTS ledger (note text PRIMARY KEY)",
    "CREATE TABLE customers (name text)",
    "INSERT INTO customers VALUES ('of everybody')",
    "CREATE SCHEMA tenant_a",
    "CREATE TABLE tenant_a.customers (name text)",
    "INSERT INTO tenant_a.customers VALUES ('secret of A')",
    "CREATE TABLE numbered (id serial, x int)",
    f"CREATE FUNCTION enter() RETURNS text LANGUAGE sql AS $$ SELECT {ENTER} $$",
    'CREATE FUNCTION "set"(text, text) RETURNS text LANGUAGE sql AS $$ SELECT set_config($1, $2, false) $$',
    "CREATE FUNCTION round(text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('search_path', $1, false) $$",
    "CREATE TABLE acct (id int)",
    "INSERT INTO acct VALUES (1)",
    f"CREATE FUNCTION enter(acct) RETURNS text LANGUAGE sql AS $$ SELECT {ENTER} $$",
    "CREATE DOMAIN tenant_name AS text CHECK (enter() IS NOT NULL)",
    "CREATE VIEW enter_a AS SELECT enter() AS s",
    "CREATE TABLE watched (x int)",
    "CREATE TABLE watched_late (x int)",
    "CREATE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM enter(); RETURN NULL; END $$",
    "CREATE TRIGGER enters AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION enters()",
    "CREATE CONSTRAINT TRIGGER enters AFTER INSERT ON watched_late DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION enters()",
    """CREATE FUNCTION prepare() RETURNS int LANGUAGE plpgsql AS
       $$ BEGIN EXECUTE 'PREPARE mine AS SELECT 1'; RETURN 1; END $$""",
    """CREATE FUNCTION last_number() RETURNS text LANGUAGE plpgsql AS
       $$ BEGIN RETURN lastval(); EXCEPTION WHEN object_not_in_prerequisite_state THEN RETURN 'none'; END $$""",
]
FOUND = """
    SELECT (SELECT name FROM customers) AS customer, current_setting('search_path') AS path, current_user AS who,
           session_user AS session_who, coalesce(nullif(current_setting('app.who', true), ''), 'nobody') AS app,
           (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction_%') AS settings,
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
           (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()) AS tables,
           (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors,
           (SELECT count(*) FROM pg_listening_channels()) AS channels,
           (SELECT count(*) FROM pg_prepared_statements WHERE from_sql AND name <> 'oncehook') AS statements,
           last_number() AS last_number, current_setting('transaction_isolation') AS isolation,
           current_setting('transaction_read_only') AS read_only
"""
LEFT = {
    "pg_settings": "UPDATE pg_settings SET setting = 'tenant_a, public' WHERE name = 'search_path'",
    "escaped name": "SELECT U&\"set_config\" UESCAPE '!' ('search_path', 'tenant_a, public', false)",
    "function named by a keyword": "SELECT set('search_path', 'tenant_a, public')",
    "overloaded function": "SELECT round('tenant_a, public'::text)",
    "attribute notation": "SELECT a.enter FROM acct a",
    "domain": "SELECT 'tenant_a'::tenant_name",
    "temporary table by an escaped name": "SELECT 'left by A' AS name INTO U&\"pg\\005ftemp\".customers",
    "view": "SELECT s FROM enter_a",
    "trigger": "INSERT INTO watched VALUES (1)",
    "deferred trigger": "INSERT INTO watched_late VALUES (1)",
    "sequence": "INSERT INTO numbered (x) VALUES (1)",
    "set_config": f"SELECT {ENTER}",
    "set_config after a comment": "SELECT set_config/**/ --\n('search_path', 'tenant_a, public', false)",
    "set_config quoted": "SELECT \"set_config\"('search_path', 'tenant_a, public', false)",
    "set_config qualified": f"SELECT pg_catalog . {ENTER}",
    "set_config in a CTE": f"WITH entered AS MATERIALIZED (SELECT {ENTER}) SELECT * FROM entered",
    "set_config explained": f"EXPLAIN ANALYZE SELECT {ENTER}",
    "SET": "SET search_path TO tenant_a, public",
    "SET of the app's own": "SET app.who = 'A'",
    "two statements": "SELECT 1; SET search_path TO tenant_a, public",
    "DO": "DO $$ BEGIN PERFORM enter(); END $$",
    "COPY": "COPY (SELECT enter()) TO PROGRAM 'cat > /dev/null'",
    "role": "SET ROLE somebody",
    "session authorization": "SET SESSION AUTHORIZATION somebody",
    "temporary table": "CREATE TEMP TABLE customers AS SELECT 'left by A' AS name",
    "temporary view": "CREATE TEMP VIEW customers AS SELECT 'left by A' AS name",
    "prepared statement": "PREPARE mine AS SELECT 1",
    "prepared statement of a function": "SELECT prepare()",
    "cursor": "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "cursor that is run by the COMMIT": "DECLARE mine CURSOR WITH HOLD FOR SELECT enter()",
    "LISTEN": "LISTEN mine",
    "advisory lock": "SELECT pg_advisory_lock(7)",
    "read-only sessions": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "isolation level of the session": "SELECT set_config('default_transaction_isolation', 'serializable', false)",
    "isolation level": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
}


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[Inbox]:
    """A started inbox that has one handler at a time, and no worker yet."""
    inbox = make_inbox(worker=False, concurrency=1)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        for statement in OBJECTS:
            ask(database, statement)
        make_role = "DO $$ BEGIN CREATE ROLE somebody; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        ask(database, make_role)
        yield inbox


@pytest.mark.parametrize("left", LEFT)
async def test_nothing_in_a_session_reaches_the_next_handler(inbox: Inbox, database: str, left: str) -> None:
    """Handlers follow each other at once, so that their transactions are begun ahead; every second one of A fails."""
    found: list[dict[str, Any]] = []
    backends: set[int] = set()

    @inbox.on("stripe", "invoice.paid")
    async def probe(event: Event, tx: Any) -> None:
        found.append(dict(await tx.fetchrow(FOUND)))
        backends.add(await tx.fetchval("SELECT pg_backend_pid()"))

    @inbox.on("stripe", "charge.paid")
    async def leave(event: Event, tx: Any) -> None:
        await tx.execute(LEFT[left])
        if int(event.id[-1]) % 4 == 3:
            raise Fail("after all that")

    types = ["invoice.paid", "charge.paid"] * 4 + ["invoice.paid"]
    await inbox._runtime.store.claims.insert(
        [make_claim(f"evt_{number}", type=type) for number, type in enumerate(types)]
    )
    inbox._runtime.start_worker()
    await eventually(lambda: states(database).count("processed") == 7 and states(database).count("failed") == 2)
    assert found == [found[0]] * 5
    assert (
        found[0] | {"customer": "of everybody", "settings": 0, "locks": 0, "tables": 0, "last_number": "none"}
        == found[0]
    )
    assert len(backends) == 1


@pytest.mark.parametrize(
    "left",
    [
        "SET search_path = tenant_a",
        "SET LOCAL search_path = tenant_a",
        "SET LOCAL search_path = shadow, public",
        "SET LOCAL ROLE somebody",
        "SET SESSION AUTHORIZATION somebody",
        "SET LOCAL statement_timeout = '50ms'",
        "SET lock_timeout = '1ms'",
        "SET LOCAL row_security = off",
        "SET CONSTRAINTS ALL DEFERRED",
        "SET LOCAL enable_indexscan = off",
        "SET standard_conforming_strings = off",
        "CREATE TEMP TABLE webhook_receipts AS SELECT * FROM webhook_receipts",
        "PREPARE oncehook_mark AS SELECT 1",
    ],
)
@pytest.mark.parametrize("batch", [None, 3])
async def test_the_event_is_processed_in_whatever_session_the_handler_leaves(
    inbox: Inbox, database: str, left: str, batch: int | None
) -> None:
    ask(database, "CREATE SCHEMA shadow")
    ask(database, "CREATE TABLE shadow.webhook_receipts (LIKE public.webhook_receipts)")
    attempts: list[int] = []

    @inbox.on("stripe", "invoice.paid", retry=ONCE, batch=batch)
    async def leave(events: Any, tx: Any) -> None:
        for event in events if batch else [events]:
            await tx.execute("INSERT INTO public.ledger VALUES ($1)", event.id)
        attempts.append(len(events) if batch else 1)
        await tx.execute(left)

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(3)])
    inbox._runtime.start_worker()
    await eventually(lambda: set(states(database)) <= {"processed", "failed"})
    assert ask(database, "SELECT status, last_error FROM webhook_receipts") == [("processed", None)] * 3
    assert ask(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_0",), ("evt_1",), ("evt_2",)]
    assert attempts == ([3] if batch else [1, 1, 1])


@pytest.mark.parametrize(
    ("ending", "is_kept"),
    [
        (["ROLLBACK; BEGIN"], False),
        (["COMMIT; BEGIN"], True),
        (["END; START TRANSACTION"], True),
        (["ROLLBACK AND CHAIN"], False),
        (["COMMIT AND CHAIN"], True),
        (["ROLLBACK", "BEGIN"], False),
        (["COMMIT", "BEGIN"], True),
        (["COMMIT"], True),
        (["SELECT 1; RESET ALL"], False),
    ],
)
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("cleans", [True, False])
async def test_a_handler_that_ends_or_replaces_its_transaction_fails(
    make_inbox: Callable[..., Inbox], database: str, ending: list[str], is_kept: bool, batch: int | None, cleans: bool
) -> None:
    """The event is never processed without its work. What the handler committed itself cannot be taken back."""
    inbox = make_inbox(worker=False, clean_sessions=cleans)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid", retry=ONCE, batch=batch)
    async def end(events: Any, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ('one') ON CONFLICT DO NOTHING")
        for statement in ending:
            await tx.execute(statement)

    async with inbox.lifespan():
        ask(database, "CREATE TABLE ledger (note text PRIMARY KEY)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
        inbox._runtime.start_worker()
        await eventually(lambda: set(states(database)) <= {"processed", "failed"})
    assert states(database) == ["failed", "failed"]
    [error] = {row[0] for row in ask(database, "SELECT last_error FROM webhook_receipts")}
    assert "the handler ended its transaction itself" in error
    assert ask(database, "SELECT count(*) FROM ledger") == [(int(is_kept),)]


async def test_a_read_only_transaction_cannot_hold_the_processed_status(inbox: Inbox, database: str) -> None:
    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def read(event: Event, tx: Any) -> None:
        await tx.execute("SET TRANSACTION READ ONLY")

    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["failed"])
    assert "read-only transaction" in ask(database, "SELECT last_error FROM webhook_receipts")[0][0]


async def test_a_deferred_trigger_runs_with_the_settings_and_the_role_of_its_handler(
    inbox: Inbox, database: str
) -> None:
    ask(database, "CREATE TABLE audit (who text, role text)")
    ask(database, "GRANT INSERT ON audit, ledger TO somebody")
    ask(
        database,
        "CREATE FUNCTION audits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO audit VALUES (current_setting('app.who'), current_user); RETURN NULL; END $$",
    )
    ask(
        database,
        "CREATE CONSTRAINT TRIGGER audits AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION audits()",
    )

    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        await tx.execute("SET LOCAL app.who = 'the handler'; SET LOCAL ROLE somebody")
        await tx.execute("INSERT INTO ledger VALUES ($1)", event.id)

    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["processed"])
    assert ask(database, "SELECT * FROM audit") == [("the handler", "somebody")]


async def test_a_session_without_the_drivers_prepared_statements_is_closed(inbox: Inbox, database: str) -> None:
    """The handler's work is committed by then: the event is processed, and no other handler gets the session."""
    backends: list[int] = []

    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        backends.append(await tx.fetchval("SELECT pg_backend_pid()"))
        await tx.execute("INSERT INTO ledger VALUES ($1)", event.id)
        if event.id in ("evt_1", "evt_3"):
            await tx.execute("DEALLOCATE ALL")
        if event.id == "evt_2":
            await tx.execute("DEALLOCATE ALL; PREPARE mine AS SELECT 1")
        if event.id == "evt_3":
            raise Fail("after that")

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(5)])
    inbox._runtime.start_worker()
    await eventually(lambda: set(states(database)) <= {"processed", "failed"})
    assert states(database) == ["processed", "processed", "processed", "failed", "processed"]
    assert ask(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_0",), ("evt_1",), ("evt_2",), ("evt_4",)]
    if inbox._runtime.settings.fast_paths:  # else the driver keeps no statement, and misses none
        assert [backends.index(backend) for backend in backends] == [0, 0, 2, 3, 4]


async def test_a_commit_is_reported_though_the_message_fails_behind_it(store: Store, database: str) -> None:
    await store.claims.insert([make_claim("evt_1")])
    (leased,) = await store.leases.take(1, 60, "worker")
    transaction = store.transaction()
    connection = await transaction.connection()
    await connection.execute("DEALLOCATE ALL")
    assert await transaction.settle([Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")]) is True
    assert states(database) == ["processed"]


async def test_a_missing_prepared_statement_before_the_commit_fails_the_attempt(inbox: Inbox, database: str) -> None:
    """The same error as after DEALLOCATE ALL, but of the handler's own deferred trigger: nothing is committed."""
    ask(database, "CREATE OR REPLACE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN EXECUTE 'EXECUTE missing'; RETURN NULL; END $$")  # fmt: skip

    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ($1)", event.id)
        await tx.execute("INSERT INTO watched_late VALUES (1)")

    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["failed"])
    assert '"missing" does not exist' in ask(database, "SELECT last_error FROM webhook_receipts")[0][0]
    assert ask(database, "SELECT count(*) FROM ledger") == [(0,)]


async def test_a_session_is_closed_if_a_deferred_trigger_changed_its_user(inbox: Inbox, database: str) -> None:
    """The trigger runs in the message that ends the transaction: the client learns of it only afterwards."""
    ask(database, "GRANT SELECT, UPDATE ON webhook_receipts TO somebody")
    ask(database, "CREATE OR REPLACE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN SET SESSION AUTHORIZATION somebody; RETURN NULL; END $$")  # fmt: skip
    found: list[tuple[str, int]] = []

    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        found.append(tuple(await tx.fetchrow("SELECT session_user, pg_backend_pid()")))
        if event.id == "evt_0":
            await tx.execute("INSERT INTO watched_late VALUES (1)")

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(3)])
    inbox._runtime.start_worker()
    await eventually(lambda: set(states(database)) <= {"processed", "failed"})
    assert states(database) == ["processed"] * 3
    users, backends = zip(*found, strict=True)
    assert len(set(users)) == 1
    if inbox._runtime.settings.fast_paths:  # else the user is always reset
        assert backends[0] != backends[1] == backends[2]


async def test_a_session_can_be_left_as_it_is(make_inbox: Callable[..., Inbox], database: str) -> None:
    """The opt-out: what a handler leaves is found by the next one, but not after a handler that failed."""
    found: list[str] = []
    inbox = make_inbox(worker=False, concurrency=1, clean_sessions=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def paid(event: Event, tx: Any) -> None:
        found.append(await tx.fetchval("SELECT coalesce(current_setting('app.who', true), '')"))
        await tx.execute(f"SET app.who = '{event.id}'")
        if event.id == "evt_1":
            raise Fail("after that")

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(4)])
        inbox._runtime.start_worker()
        await eventually(lambda: set(states(database)) <= {"processed", "failed"})
    assert found == ["", "evt_0", "", "evt_2"]


# -- connections ----------------------------------------------------------------------------------------------------


def connections_of(inbox: Inbox) -> HandlerConnections:
    assert (
        isinstance(inbox._runtime.store.database, PostgresDatabase)
        and inbox._runtime.store.database.handler_connections is not None
    )
    return inbox._runtime.store.database.handler_connections


async def test_a_connection_whose_commit_was_cancelled_is_not_used_again(inbox: Inbox, database: str) -> None:
    connections = connections_of(inbox)
    connection = await connections.take()
    await connection.execute("INSERT INTO watched_late VALUES (1)")
    ask(database, "CREATE OR REPLACE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$")  # fmt: skip
    settled = [Settled(1, 1, State.PROCESSED, "processed")]
    committing = asyncio.create_task(connections.commit(connection, settled, and_begin=False))
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    await eventually(lambda: ask(database, sleeping) == [(1,)])
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    await connections.roll_back(connection)
    connections.release(connection)
    other = await connections.take()
    assert other is not connection and connection.is_closed()
    await connections.roll_back(other)
    connections.release(other)
