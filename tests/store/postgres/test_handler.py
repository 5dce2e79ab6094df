"""What only PostgreSQL has of a handler's transaction: a session that outlives it, and that nobody may find changed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import Settings
from oncehook.store import make_store
from oncehook.store.postgres.database import PostgresDatabase
from oncehook.store.postgres.handler import MAX_AHEAD_SECONDS, HandlerConnections
from tests.support.events import make_claim
from tests.support.proxy import proxied
from tests.support.servers import Postgres, ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

SLOW = Retry(attempts=5, first=3600, most=3600)
LEFT_BEHIND = """
    SET app.who = 'the first';
    SELECT pg_advisory_lock(7);
    CREATE TEMP TABLE leftover (note text) ON COMMIT PRESERVE ROWS;
    DECLARE leftover CURSOR WITH HOLD FOR SELECT 1;
    LISTEN leftover
"""
FOUND = """
    SELECT coalesce(nullif(current_setting('app.who', true), ''), 'nobody') AS who,
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
           to_regclass('leftover') AS tables, (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors,
           (SELECT count(*) FROM pg_listening_channels()) AS channels
"""
CLEAN = {"who": "nobody", "locks": 0, "tables": None, "cursors": 0, "channels": 0}


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[Inbox]:
    """A started inbox that has one handler at a time, and no worker yet."""
    inbox = make_inbox(worker=False, concurrency=1)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        ask(database, "CREATE TABLE ledger (note text PRIMARY KEY)")
        yield inbox


def states(database: str) -> list[str]:
    return [row[0] for row in ask(database, "SELECT status FROM webhook_receipts ORDER BY event_id")]


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_what_a_handler_leaves_in_its_session_reaches_no_other(inbox: Inbox, database: str, ends: str) -> None:
    found: list[dict[str, Any]] = []
    backends: list[int] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        backends.append(await tx.fetchval("SELECT pg_backend_pid()"))
        if event.id == "evt_2":
            found.append(dict(await tx.fetchrow(FOUND)))
            return
        await tx.execute(LEFT_BEHIND)
        if ends == "badly":
            raise Fail("after all that")

    await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["processed" if ends == "well" else "failed", "processed"])
    assert found == [CLEAN]
    assert len(set(backends)) == 1


async def test_nothing_is_left_where_handlers_follow_each_other_and_some_fail(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    """Their transactions are begun ahead, with the end of the one before: a rollback must not undo the cleaning."""
    found: list[str] = []
    inbox = make_inbox(worker=False, concurrency=4)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # possible only as a transaction's first
        found.append(await tx.fetchval("SELECT coalesce(current_setting('app.who', true), '')"))
        await tx.execute("SET app.who = 'me'")
        if int(event.id[-3:]) % 3 == 0:
            raise Fail("every third")

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:03d}") for number in range(120)])
        inbox._runtime.start_worker()
        await eventually(lambda: sorted(set(states(database))) == ["failed", "processed"])
    assert states(database).count("failed") == 40
    assert set(found) <= {""}
    assert len(found) == 120


@pytest.mark.parametrize(
    "makes",
    [
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SELECT set_config('default_transaction_isolation', 'serializable', false)",
    ],
)
async def test_the_kind_of_transaction_that_a_handler_made_the_sessions_own_is_of_no_other(
    inbox: Inbox, database: str, makes: str
) -> None:
    found: list[tuple[int, str, str]] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        kind = "current_setting('transaction_isolation'), current_setting('transaction_read_only')"
        found.append(tuple(await tx.fetchrow(f"SELECT pg_backend_pid(), {kind}")))
        if event.id == "evt_2":
            await tx.execute(makes)

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(1, 6)])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["processed"] * 5)
    assert set(found) == {(found[0][0], "read committed", "off")}


async def test_a_statement_that_a_handler_prepared_through_the_driver_ends_with_it(inbox: Inbox, database: str) -> None:
    kept: list[Any] = []
    backends: list[int] = []

    @inbox.on("stripe", "invoice.paid")
    async def prepare(event: Event, tx: Any) -> None:
        backends.append(await tx.fetchval("SELECT pg_backend_pid()"))
        if event.id == "evt_1":
            kept.append(await tx.prepare("INSERT INTO ledger VALUES ('late') RETURNING 1"))

    await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2"), make_claim("evt_3")])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["processed"] * 3)
    first, second, third = backends
    assert first != second == third  # its connection is cut, and no other
    with pytest.raises(Exception, match=r"closed|released"):
        await kept[0].fetchval()
    assert ask(database, "SELECT * FROM ledger") == []


async def test_a_batch_that_lost_one_of_its_leases_keeps_nothing(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    """It runs again one by one, and the event that is another worker's by now is left alone."""
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
            await asyncio.to_thread(ask, database, taken)

    async with inbox.lifespan():
        ask(database, "CREATE TABLE ledger (note text PRIMARY KEY)")
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(1, 4)])
        inbox._runtime.start_worker()
        await eventually(lambda: len(ran) == 4 and states(database).count("processed") == 2)
        assert inbox._runtime.worker is not None
        await inbox._runtime.worker.stop()
    assert states(database) == ["processed", "processing", "processed"]
    assert ask(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_1",), ("evt_3",)]


async def test_a_handler_that_is_cancelled_while_its_transaction_begins_leaves_room_for_the_next(
    database: str,
) -> None:
    async with proxied(database) as (proxy, through):
        store = make_store(Settings(database=through, concurrency=1, claim_timeout=5.0))
        await store.open()
        assert store.database.handler_connections is not None
        for is_connected in (False, True):
            proxy.stall()
            taking = asyncio.create_task(store.database.handler_connections.take())
            await eventually(lambda task=taking: store.database.handler_connections._slots.locked())  # type: ignore[misc, union-attr]
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            assert taking.cancelled(), is_connected
            proxy.flow()
            connection = await asyncio.wait_for(store.database.handler_connections.take(), 5)
            await store.database.handler_connections.roll_back(connection)
            store.database.handler_connections.release(connection)
        await store.close()


async def test_a_connection_whose_driver_a_handler_changed_is_not_used_again(inbox: Inbox, database: str) -> None:
    seen: list[tuple[int, Any]] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        if event.id == "evt_1":
            await tx.set_type_codec("text", encoder=str, decoder=str.upper, schema="pg_catalog")
        seen.append((await tx.fetchval("SELECT pg_backend_pid()"), await tx.fetchval("SELECT 'quiet'::text")))

    await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["processed", "processed"])
    (first, loud), (second, quiet) = seen
    assert (loud, quiet) == ("QUIET", "quiet")
    assert first != second


async def test_no_transaction_stays_open_when_the_work_is_done(make_inbox: Callable[..., Inbox], database: str) -> None:
    inbox = make_inbox(worker=False, concurrency=8)
    inbox.source("stripe", secrets=["whsec_test"])
    ahead: list[bool] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("SELECT 1")

    async with inbox.lifespan():
        assert (
            isinstance(inbox._runtime.store.database, PostgresDatabase)
            and inbox._runtime.store.database.handler_connections is not None
        )
        give_back = inbox._runtime.store.database.handler_connections.release

        def watched(connection: Any) -> None:
            ahead.append(connection.begun_at is not None)
            give_back(connection)

        inbox._runtime.store.database.handler_connections.release = watched  # type: ignore[method-assign]
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:03d}") for number in range(100)])
        inbox._runtime.start_worker()
        await eventually(lambda: set(states(database)) == {"processed"})
        idle = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        await eventually(lambda: ask(database, idle) == [(0,)])
    assert any(ahead) is inbox._runtime.settings.fast_paths


async def test_a_transaction_that_was_begun_long_ahead_is_begun_anew(inbox: Inbox) -> None:
    assert (
        isinstance(inbox._runtime.store.database, PostgresDatabase)
        and inbox._runtime.store.database.handler_connections is not None
    )
    connections: HandlerConnections = inbox._runtime.store.database.handler_connections
    early = await connections.take()
    begun = await early.fetchval("SELECT now()")
    early.begun_at = SYSTEM.monotonic() - 2 * MAX_AHEAD_SECONDS
    connections.release(early)
    late = await connections.take()
    assert late is early
    assert await late.fetchval("SELECT now()") > begun
    await connections.roll_back(late)
    connections.release(late)


async def test_a_division_by_zero_of_the_users_own_at_the_commit_is_the_handlers_failure(
    inbox: Inbox, database: str
) -> None:
    ask(
        database,
        "CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 / 0; RETURN NULL; END $$",
    )
    ask(
        database,
        "CREATE CONSTRAINT TRIGGER divided AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION divide()",
    )

    @inbox.on("stripe", "invoice.paid", retry=SLOW)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ('one')")

    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: states(database) == ["retrying"])
    assert ask(database, "SELECT last_error FROM webhook_receipts") == [("DivisionByZeroError: division by zero",)]
    assert ask(database, "SELECT * FROM ledger") == []


@pytest.mark.parametrize("setting", ["on", "off"])
async def test_the_mark_is_written_whatever_the_session_takes_for_a_string(
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
        await eventually(lambda: states(database) == ["processed"])
    assert ask(database, "SELECT version FROM webhook_attempts") == [(version,)]


async def test_handlers_leave_the_door_its_connections(make_inbox: Callable[..., Inbox], database: str) -> None:
    """However many handlers hold a transaction, a claim does not wait for one of them."""
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
        await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_999")]), 2)
        go_on.set()
        await eventually(lambda: set(states(database)) == {"processed"})
