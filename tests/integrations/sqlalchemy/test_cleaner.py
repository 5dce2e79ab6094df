"""Session state that a handler leaves in a connection of the app's pool reaches neither other handlers nor the app."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from oncehook import Fail, Inbox, SyncEvent
from tests.support import sessions
from tests.support.engines import AnyEngine, dispose
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql, sqlite_file
from tests.support.shared_connection import (
    as_app,
    assert_isolation,
    handle,
    listen,
    make_single_engine,
    postgres_state,
    register,
    sqlite_state,
    start,
    sync_part,
)
from tests.support.stores import statuses
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def on(postgres: Postgres, tmp_path: Path) -> Callable[[str], str]:
    """A new database for a driver."""
    return lambda driver: sqlite_file(tmp_path / "inbox.db") if "sqlite" in driver else postgres.database(migrated=True)


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def database(on: Callable[[str], str], driver: str) -> str:
    return on(driver)


@pytest.fixture
async def engine(database: str, driver: str) -> AsyncIterator[AnyEngine]:
    engine = make_single_engine(database, driver)
    yield engine
    await dispose(engine)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await start(inbox, database)
        yield inbox


POSTGRES = ["asyncpg async", "psycopg"]
SQLITE = ["aiosqlite async", "pysqlite"]
only_postgres = pytest.mark.parametrize("driver", POSTGRES, indirect=True)
only_sqlite = pytest.mark.parametrize("driver", SQLITE, indirect=True)
everywhere = pytest.mark.parametrize("driver", [*POSTGRES, "psycopg async", *SQLITE], indirect=True)


@pytest.mark.sampled(3)
@only_postgres
@pytest.mark.parametrize("left", sessions.LEFT)
async def test_postgres_session_state_reaches_neither_other_handlers_nor_the_app(
    inbox: Inbox, engine: AnyEngine, database: str, driver: str, left: str
) -> None:
    if left == "two statements" and "asyncpg" in driver:
        pytest.skip("SQLAlchemy sends one statement at a time to asyncpg")
    backends: set[int] = set()

    def leave(event: SyncEvent, session: Session) -> None:
        session.connection().connection.cursor().execute(sessions.LEFT[left])
        backends.add(session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    [first, *_] = await assert_isolation(inbox, engine, database, leave, postgres_state)
    nothing = {"customer": "of everybody", "settings": 0, "locks": 0, "tables": 0, "last_number": "none"}
    assert first | nothing == first
    if inbox._runtime.settings.fast_paths:
        assert len(backends) == 1, "the connection must be cleaned, not closed"


@pytest.mark.sampled(3)
@only_sqlite
@pytest.mark.parametrize("left", sessions.SQLITE_LEFT)
async def test_sqlite_session_state_reaches_neither_other_handlers_nor_the_app(
    inbox: Inbox, engine: AnyEngine, database: str, left: str
) -> None:
    def leave(event: SyncEvent, session: Session) -> None:
        for statement in sessions.SQLITE_LEFT[left]:
            session.connection().exec_driver_sql(statement)

    [first, *_] = await assert_isolation(inbox, engine, database, leave, sqlite_state)
    assert first | {"customer": "of everybody", "temporary": 0, "last_number": 0} == first


@only_sqlite
async def test_statement_that_the_app_has_sent_before_is_detected_in_a_handler(
    inbox: Inbox, engine: AnyEngine, database: str
) -> None:
    """sqlite3 compiles a statement only once per connection."""
    pragma = "PRAGMA recursive_triggers = ON"

    def use(connection: Connection) -> None:
        connection.exec_driver_sql(pragma)
        connection.exec_driver_sql("PRAGMA recursive_triggers = OFF")

    register(inbox, "charge.paid", lambda event, session: session.connection().exec_driver_sql(pragma))
    await as_app(engine, use)
    await handle(inbox, database, "charge.paid")
    assert statuses(database) == ["processed"]
    value = await as_app(engine, lambda connection: connection.exec_driver_sql("PRAGMA recursive_triggers").scalar())
    assert value == 0


@everywhere
async def test_session_state_of_a_batch_reaches_neither_other_handlers_nor_the_app(
    inbox: Inbox, engine: AnyEngine, database: str
) -> None:
    is_sqlite = database.startswith("sqlite")
    state = sqlite_state if is_sqlite else postgres_state
    before = await as_app(engine, state)
    sizes: list[int] = []

    def leave(events: list[SyncEvent], session: Session) -> None:
        sizes.append(len(events))
        connection = session.connection()
        for leaving in events:
            connection.exec_driver_sql(f"INSERT INTO ledger VALUES ('{leaving.id}')")
        connection.exec_driver_sql("CREATE TEMP TABLE webhook_receipts (id int)")
        connection.exec_driver_sql("PRAGMA case_sensitive_like = ON" if is_sqlite else "SET search_path = tenant_a")

    register(inbox, "charge.paid", leave, batch=3)
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}", type="charge.paid") for number in range(3)])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed"] * 3)
    assert sizes == [3]
    assert run_sql(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_0",), ("evt_1",), ("evt_2",)]
    assert await as_app(engine, state) == before


@pytest.mark.sampled(3)
@only_postgres
@pytest.mark.parametrize(
    "left", ["SET search_path = tenant_a", "SET LOCAL ROLE other_role", "SET LOCAL statement_timeout = '50ms'"]
)
async def test_event_is_processed_whatever_session_settings_the_handler_leaves(
    inbox: Inbox, database: str, left: str
) -> None:
    register(inbox, "charge.paid", lambda event, session: session.connection().exec_driver_sql(left))
    await handle(inbox, database, "charge.paid")
    assert run_sql(database, "SELECT status, last_error FROM webhook_receipts") == [("processed", None)]


@pytest.mark.parametrize("driver", [*POSTGRES, "psycopg async"], indirect=True)
async def test_settings_of_a_connect_listener_are_restored(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    run_sql(database, sessions.CREATE_ROLE)
    run_sql(database, "CREATE SCHEMA app")
    calls = listen(
        engine,
        'SET search_path TO app, "It\'s", public',
        "SET log_min_duration_statement = 12345",  # only a superuser may set it, and other_role is not one
        "SET ROLE other_role",
    )

    @event.listens_for(sync_part(engine), "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL work_mem = '7MB'")  # ends with each transaction

    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    names = ["search_path", "role", "log_min_duration_statement", "statement_timeout", "work_mem"]
    query = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)

    def state(connection: Connection) -> dict[str, Any]:
        return {"settings": tuple(connection.exec_driver_sql(query).one())}

    def leave(event: SyncEvent, session: Session) -> None:
        for statement in ["RESET ROLE", "SET search_path = tenant_a", "SET statement_timeout = '9s'"]:
            session.connection().exec_driver_sql(statement)

    async with inbox.lifespan():
        await start(inbox, database)
        run_sql(database, "GRANT ALL ON ALL TABLES IN SCHEMA public TO other_role")
        [first, *_] = await assert_isolation(inbox, engine, database, leave, state)
    assert first["settings"] == ('app, "It\'s", public', "other_role", "12345ms", "0", "7MB")
    if inbox._runtime.settings.fast_paths:
        assert len(calls) == 1, "the connection must be cleaned, not closed"


@only_postgres
async def test_connection_with_a_temporary_table_of_a_listener_is_closed(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    listen(engine, "CREATE TEMP TABLE of_the_app AS SELECT 'made at connect' AS note")
    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])

    def state(connection: Connection) -> dict[str, Any]:
        return {"notes": connection.exec_driver_sql("SELECT string_agg(note, ', ') FROM of_the_app").scalar()}

    def leave(event: SyncEvent, session: Session) -> None:
        session.connection().exec_driver_sql("INSERT INTO of_the_app VALUES ('left by A')")

    async with inbox.lifespan():
        seen = await assert_isolation(inbox, engine, database, leave, state)
    assert seen[0] == {"notes": "made at connect"}


@only_sqlite
async def test_connect_listener_runs_again_after_a_connection_is_closed(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    calls = listen(engine, "PRAGMA foreign_keys = ON")
    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])

    def leave(event: SyncEvent, session: Session) -> None:
        session.connection().exec_driver_sql("CREATE TEMP TABLE IF NOT EXISTS scratch (x)")

    async with inbox.lifespan():
        await start(inbox, database)
        seen = await assert_isolation(inbox, engine, database, leave, sqlite_state)
    assert seen[0]["foreign_keys"] == 1
    assert len(calls) == 8  # once at first and after each of the seven handlers, because reading a pragma counts too


@only_sqlite
async def test_connection_is_reused_after_plain_statements(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    calls = listen(engine)
    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])

    def state(connection: Connection) -> dict[str, Any]:
        return {"last_number": connection.exec_driver_sql("SELECT last_insert_rowid()").scalar()}

    def write(event: SyncEvent, session: Session) -> None:
        with session.begin_nested():
            session.connection().exec_driver_sql("INSERT INTO ledger SELECT value FROM json_each('[1, 2]')")
        session.connection().exec_driver_sql("UPDATE ledger SET note = lower(note)")

    async with inbox.lifespan():
        await start(inbox, database)
        await assert_isolation(inbox, engine, database, write, state)
    assert len(calls) == 1


@everywhere
async def test_handler_that_commits_its_connection_fails(inbox: Inbox, engine: AnyEngine, database: str) -> None:
    is_sqlite = database.startswith("sqlite")
    state = sqlite_state if is_sqlite else postgres_state
    before = await as_app(engine, state)

    def commit(event: SyncEvent, session: Session) -> None:
        connection = session.connection()
        connection.exec_driver_sql("INSERT INTO ledger VALUES ('of A')")
        connection.exec_driver_sql("PRAGMA case_sensitive_like = ON" if is_sqlite else "SET search_path = tenant_a")
        try:
            connection.commit()
        except Exception:
            pass  # a handler may ignore the error

    register(inbox, "charge.paid", commit)
    await handle(inbox, database, "charge.paid")
    assert statuses(database) == ["failed"]
    error = run_sql(database, "SELECT last_error FROM webhook_receipts")[0][0]
    assert "the handler ended its transaction itself" in error
    assert run_sql(database, "SELECT count(*) FROM ledger") == [(0,)]
    assert await as_app(engine, state) == before


@everywhere
async def test_handler_that_rolls_back_its_connection_fails_and_leaves_no_state(
    inbox: Inbox, engine: AnyEngine, database: str
) -> None:
    is_sqlite = database.startswith("sqlite")
    state = sqlite_state if is_sqlite else postgres_state
    leaves = "PRAGMA case_sensitive_like = ON" if is_sqlite else "SET search_path = tenant_a"
    before = await as_app(engine, state)

    def roll_back(event: SyncEvent, session: Session) -> None:
        connection = session.connection()
        connection.exec_driver_sql("INSERT INTO ledger VALUES ('of A')")
        connection.rollback()
        connection.exec_driver_sql(leaves)

    register(inbox, "charge.paid", roll_back)
    await handle(inbox, database, "charge.paid")
    assert statuses(database) == ["failed"]
    assert run_sql(database, "SELECT count(*) FROM ledger") == [(0,)]
    assert await as_app(engine, state) == before


@only_postgres
async def test_deallocate_all_does_not_break_later_statements(inbox: Inbox, engine: AnyEngine, database: str) -> None:
    def query(connection: Connection) -> None:
        for _ in range(7):  # psycopg prepares a statement that it has seen a few times
            connection.exec_driver_sql("SELECT 1 + 1").scalar()

    def deallocate(event: SyncEvent, session: Session) -> None:
        query(session.connection())
        session.connection().exec_driver_sql("DEALLOCATE ALL")

    def deallocate_and_fail(event: SyncEvent, session: Session) -> None:
        deallocate(event, session)
        raise Fail("after all that")

    register(inbox, "charge.paid", deallocate)
    register(inbox, "charge.failed", deallocate_and_fail)
    register(inbox, "invoice.paid", lambda event, session: query(session.connection()))
    await handle(inbox, database, "invoice.paid")
    for type in ("charge.paid", "charge.failed"):
        await handle(inbox, database, type)
        await as_app(engine, query)
        await handle(inbox, database, "invoice.paid")
    assert statuses(database) == ["processed", "processed", "processed", "failed", "processed"]


@only_postgres
async def test_rolled_back_savepoint_and_schema_change_do_not_break_later_handlers(
    inbox: Inbox, engine: AnyEngine, database: str
) -> None:
    """psycopg deallocates all prepared statements after both."""

    def write(event: SyncEvent, session: Session) -> None:
        for _ in range(7):
            session.connection().exec_driver_sql("SELECT 1 + 1").scalar()
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            session.connection().exec_driver_sql("INSERT INTO ledger VALUES ('undone')")
            _ = 1 / 0
        session.connection().exec_driver_sql("CREATE TABLE passing (x int)")
        session.connection().exec_driver_sql("DROP TABLE passing")

    await assert_isolation(inbox, engine, database, write, postgres_state)
    assert run_sql(database, "SELECT count(*) FROM ledger") == [(0,)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("driver", "pool"),
    [
        ("pysqlite", NullPool), ("pysqlite", StaticPool), ("pysqlite", SingletonThreadPool),
        ("aiosqlite async", NullPool), ("aiosqlite async", StaticPool),
        ("psycopg", NullPool), ("asyncpg async", NullPool),
    ],
    indirect=["driver"],
)  # fmt: skip
async def test_session_state_is_removed_with_every_kind_of_pool(
    make_inbox: Callable[..., Inbox], database: str, driver: str, pool: Any
) -> None:
    options = {"connect_args": {"check_same_thread": False}} if "sqlite" in driver else {}
    engine = make_single_engine(database, driver, poolclass=pool, **options)
    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    is_sqlite = database.startswith("sqlite")

    def leave(event: SyncEvent, session: Session) -> None:
        session.connection().exec_driver_sql("CREATE TEMP TABLE IF NOT EXISTS scratch (x int)")

    async with inbox.lifespan():
        await start(inbox, database)
        state = sqlite_state if is_sqlite else postgres_state
        shares = pool is StaticPool  # one connection for all: the app may use it before it is closed
        await assert_isolation(inbox, engine, database, leave, state, with_app=not shares)
    await dispose(engine)


@only_postgres
async def test_clean_sessions_false_keeps_the_session_state(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    inbox = make_inbox(worker=False, concurrency=1, engine=engine, clean_sessions=False)
    inbox.source("stripe", secrets=["whsec_test"])
    register(inbox, "charge.paid", lambda event, session: session.connection().exec_driver_sql("SET app.who = 'A'"))
    async with inbox.lifespan():
        await handle(inbox, database, "charge.paid")
        assert statuses(database) == ["processed"]
        query = "SELECT current_setting('app.who', true)"
        assert await as_app(engine, lambda connection: connection.exec_driver_sql(query).scalar()) == "A"
