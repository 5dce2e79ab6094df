"""Nothing that a handler leaves in a connection of the app's pool reaches another handler or the app, on SQLAlchemy."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from oncehook import Fail, Inbox, Retry, SyncEvent
from tests.support import sessions
from tests.support.events import make_claim
from tests.support.servers import Postgres, ask, sqlite_file
from tests.support.stores import statuses
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ONCE = Retry(attempts=1)
Work = Callable[[Any, Session], None]
AnyEngine = Engine | AsyncEngine


def make_engine(database: str, driver: str, **options: Any) -> AnyEngine:
    """An engine whose pool keeps one connection, which the app and every handler use in turn."""
    scheme, rest = database.split(":", 1)
    name, _, kind = driver.partition(" ")
    if "poolclass" not in options:
        options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5} | options
    make: Callable[..., AnyEngine] = create_async_engine if kind == "async" else create_engine
    return make(f"{scheme}+{name}:{rest}", **options)


def sync_part(engine: AnyEngine) -> Engine:
    return engine.sync_engine if isinstance(engine, AsyncEngine) else engine


async def as_app(engine: AnyEngine, work: Callable[[Connection], Any]) -> Any:
    """What a request of the app does on the same pool."""
    if isinstance(engine, AsyncEngine):
        async with engine.connect() as connection:
            return await connection.run_sync(work)
    with engine.connect() as plain:
        return work(plain)


def register(inbox: Inbox, type: str, work: Work, **options: Any) -> None:
    async def asynchronous(given: Any, tx: AsyncSession) -> None:
        await tx.run_sync(lambda session: work(given, session))

    def plain(given: Any, tx: Session) -> None:
        work(given, tx)

    is_async = isinstance(inbox._runtime.sessions.engine, AsyncEngine)
    inbox.on("stripe", type, **{"retry": ONCE, **options})(asynchronous if is_async else plain)


async def handle(inbox: Inbox, database: str, *types: str) -> None:
    """One event after the other: each has been settled before the next one comes."""
    number = len(statuses(database))
    for type in types:
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}", type=type)])
        number += 1
        if inbox._runtime.worker is None:
            inbox._runtime.start_worker()
        assert inbox._runtime.worker is not None
        inbox._runtime.worker.wake()
        await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})


def postgres_state(connection: Connection) -> dict[str, Any]:
    return dict(connection.execute(text(sessions.FOUND)).mappings().one())


def sqlite_state(connection: Connection) -> dict[str, Any]:
    return {name: connection.exec_driver_sql(sql).scalar() for name, sql in sessions.SQLITE_FOUND.items()}


async def start(inbox: Inbox, database: str) -> None:
    if database.startswith("sqlite"):
        ask(database, "CREATE TABLE ledger (note TEXT)")
        ask(database, "CREATE TABLE customers (name TEXT)")
        ask(database, "INSERT INTO customers VALUES ('of everybody')")
        return
    for statement in sessions.OBJECTS:
        ask(database, statement)
    ask(database, sessions.CREATE_ROLE)


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
    engine = make_engine(database, driver)
    yield engine
    await engine.dispose() if isinstance(engine, AsyncEngine) else engine.dispose()


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


async def check_isolation(
    inbox: Inbox,
    engine: AnyEngine,
    database: str,
    leave: Work,
    state: Callable[[Connection], dict[str, Any]],
    *,
    with_app: bool = True,
) -> list[dict[str, Any]]:
    """Run handlers that leave something, succeed or fail, between others and requests of the app; what those found."""
    found: list[dict[str, Any]] = []
    app = [await as_app(engine, state)]

    def leave_and_fail(event: SyncEvent, session: Session) -> None:
        leave(event, session)
        raise Fail("after all that")

    register(inbox, "invoice.paid", lambda event, session: found.append(state(session.connection())))
    register(inbox, "charge.paid", leave)
    register(inbox, "charge.failed", leave_and_fail)
    types = ["invoice.paid", "charge.paid", "invoice.paid", "charge.failed", "invoice.paid", "charge.paid"]
    for type in [*types, "charge.failed"]:
        await handle(inbox, database, type)
        if with_app:
            app.append(await as_app(engine, state))
    assert statuses(database) == ["processed"] * 3 + ["failed"] + ["processed"] * 2 + ["failed"]
    assert found == [found[0]] * 3
    assert app == [app[0]] * (8 if with_app else 1)
    return found


@only_postgres
@pytest.mark.parametrize("left", sessions.LEFT)
async def test_nothing_in_a_postgres_session_reaches_another_handler_or_the_app(
    inbox: Inbox, engine: AnyEngine, database: str, driver: str, left: str
) -> None:
    if left == "two statements" and "asyncpg" in driver:
        pytest.skip("SQLAlchemy sends one statement at a time to asyncpg")
    backends: set[int] = set()

    def leave(event: SyncEvent, session: Session) -> None:
        session.connection().connection.cursor().execute(sessions.LEFT[left])
        backends.add(session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    [first, *_] = await check_isolation(inbox, engine, database, leave, postgres_state)
    nothing = {"customer": "of everybody", "settings": 0, "locks": 0, "tables": 0, "last_number": "none"}
    assert first | nothing == first
    if inbox._runtime.settings.fast_paths:
        assert len(backends) == 1, "the connection is cleaned, and not closed"


@only_sqlite
@pytest.mark.parametrize("left", sessions.SQLITE_LEFT)
async def test_nothing_in_a_sqlite_connection_reaches_another_handler_or_the_app(
    inbox: Inbox, engine: AnyEngine, database: str, left: str
) -> None:
    def leave(event: SyncEvent, session: Session) -> None:
        for statement in sessions.SQLITE_LEFT[left]:
            session.connection().exec_driver_sql(statement)

    [first, *_] = await check_isolation(inbox, engine, database, leave, sqlite_state)
    assert first | {"customer": "of everybody", "temporary": 0, "last_number": 0} == first


@only_sqlite
async def test_a_statement_that_the_app_sent_before_is_watched_too(
    inbox: Inbox, engine: AnyEngine, database: str
) -> None:
    """Python compiles it once for each connection."""
    pragma = "PRAGMA recursive_triggers = ON"

    def use(connection: Connection) -> None:
        connection.exec_driver_sql(pragma)
        connection.exec_driver_sql("PRAGMA recursive_triggers = OFF")

    register(inbox, "charge.paid", lambda event, session: session.connection().exec_driver_sql(pragma))
    await as_app(engine, use)
    await handle(inbox, database, "charge.paid")
    assert statuses(database) == ["processed"]
    found = await as_app(engine, lambda connection: connection.exec_driver_sql("PRAGMA recursive_triggers").scalar())
    assert found == 0


@everywhere
async def test_nothing_of_a_batch_reaches_another_handler_or_the_app(
    inbox: Inbox, engine: AnyEngine, database: str
) -> None:
    is_sqlite = database.startswith("sqlite")
    state = sqlite_state if is_sqlite else postgres_state
    before = await as_app(engine, state)
    sizes: list[int] = []

    def leave(events: list[SyncEvent], session: Session) -> None:
        sizes.append(len(events))
        connection = session.connection()
        for one in events:
            connection.exec_driver_sql(f"INSERT INTO ledger VALUES ('{one.id}')")
        connection.exec_driver_sql("CREATE TEMP TABLE webhook_receipts (id int)")
        connection.exec_driver_sql("PRAGMA case_sensitive_like = ON" if is_sqlite else "SET search_path = tenant_a")

    register(inbox, "charge.paid", leave, batch=3)
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}", type="charge.paid") for number in range(3)])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed"] * 3)
    assert sizes == [3]
    assert ask(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_0",), ("evt_1",), ("evt_2",)]
    assert await as_app(engine, state) == before


@only_postgres
@pytest.mark.parametrize(
    "left", ["SET search_path = tenant_a", "SET LOCAL ROLE other_role", "SET LOCAL statement_timeout = '50ms'"]
)
async def test_the_event_is_processed_in_whatever_session_the_handler_leaves(
    inbox: Inbox, database: str, left: str
) -> None:
    register(inbox, "charge.paid", lambda event, session: session.connection().exec_driver_sql(left))
    await handle(inbox, database, "charge.paid")
    assert ask(database, "SELECT status, last_error FROM webhook_receipts") == [("processed", None)]


# -- what the app's own listeners set -------------------------------------------------------------------------------


def listen(engine: AnyEngine, *statements: str) -> list[int]:
    """Let the app's `connect` listener run these; how often it was called."""
    calls: list[int] = []

    @event.listens_for(sync_part(engine), "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        calls.append(1)
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    return calls


@pytest.mark.parametrize("driver", [*POSTGRES, "psycopg async"], indirect=True)
async def test_settings_of_a_connect_listener_survive(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    ask(database, sessions.CREATE_ROLE)
    ask(database, "CREATE SCHEMA app")
    calls = listen(
        engine,
        'SET search_path TO app, "It\'s", public',
        "SET log_min_duration_statement = 12345",  # which only a superuser may set
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
        ask(database, "GRANT ALL ON ALL TABLES IN SCHEMA public TO other_role")
        [first, *_] = await check_isolation(inbox, engine, database, leave, state)
    assert first["settings"] == ('app, "It\'s", public', "other_role", "12345ms", "0", "7MB")
    if inbox._runtime.settings.fast_paths:
        assert len(calls) == 1, "the connection is cleaned, and not closed"


@only_postgres
async def test_a_connection_is_closed_where_a_listener_made_more_than_settings(
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
        found = await check_isolation(inbox, engine, database, leave, state)
    assert found[0] == {"notes": "made at connect"}


@only_sqlite
async def test_a_connect_listener_runs_again_for_a_connection_that_was_closed(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    calls = listen(engine, "PRAGMA foreign_keys = ON")
    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])

    def leave(event: SyncEvent, session: Session) -> None:
        session.connection().exec_driver_sql("CREATE TEMP TABLE IF NOT EXISTS scratch (x)")

    async with inbox.lifespan():
        await start(inbox, database)
        found = await check_isolation(inbox, engine, database, leave, sqlite_state)
    assert found[0]["foreign_keys"] == 1
    assert len(calls) == 8  # again after each of the seven: those that look at the pragmas count as well


@only_sqlite
async def test_plain_statements_keep_the_connection(
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
        await check_isolation(inbox, engine, database, write, state)
    assert len(calls) == 1


# -- what a handler does to the connection itself -------------------------------------------------------------------


@everywhere
async def test_a_handler_that_commits_its_connection_fails(inbox: Inbox, engine: AnyEngine, database: str) -> None:
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
            pass  # as a handler may that wants to go on

    register(inbox, "charge.paid", commit)
    await handle(inbox, database, "charge.paid")
    assert statuses(database) == ["failed"]
    error = ask(database, "SELECT last_error FROM webhook_receipts")[0][0]
    assert "the handler ended its transaction itself" in error
    assert ask(database, "SELECT count(*) FROM ledger") == [(0,)]
    assert await as_app(engine, state) == before


@everywhere
async def test_nothing_is_left_by_a_handler_that_rolls_its_connection_back(
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
    assert ask(database, "SELECT count(*) FROM ledger") == [(0,)]
    assert await as_app(engine, state) == before


@only_postgres
async def test_deallocating_the_drivers_statements_reaches_nobody_else(
    inbox: Inbox, engine: AnyEngine, database: str
) -> None:
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
async def test_a_savepoint_that_is_rolled_back_and_a_change_of_the_schema_fail_nothing(
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

    await check_isolation(inbox, engine, database, write, postgres_state)
    assert ask(database, "SELECT count(*) FROM ledger") == [(0,)]


@pytest.mark.parametrize(
    ("driver", "pool"),
    [
        ("pysqlite", NullPool), ("pysqlite", StaticPool), ("pysqlite", SingletonThreadPool),
        ("aiosqlite async", NullPool), ("aiosqlite async", StaticPool),
        ("psycopg", NullPool), ("asyncpg async", NullPool),
    ],
    indirect=["driver"],
)  # fmt: skip
async def test_other_pools(make_inbox: Callable[..., Inbox], database: str, driver: str, pool: Any) -> None:
    options = {"connect_args": {"check_same_thread": False}} if "sqlite" in driver else {}
    engine = make_engine(database, driver, poolclass=pool, **options)
    inbox = make_inbox(worker=False, concurrency=1, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    is_sqlite = database.startswith("sqlite")

    def leave(event: SyncEvent, session: Session) -> None:
        session.connection().exec_driver_sql("CREATE TEMP TABLE IF NOT EXISTS scratch (x int)")

    async with inbox.lifespan():
        await start(inbox, database)
        state = sqlite_state if is_sqlite else postgres_state
        shares = pool is StaticPool  # one connection for everybody at once: the app may be in it before it is closed
        await check_isolation(inbox, engine, database, leave, state, with_app=not shares)
    await engine.dispose() if isinstance(engine, AsyncEngine) else engine.dispose()


@only_postgres
async def test_a_session_can_be_left_as_it_is(
    make_inbox: Callable[..., Inbox], engine: AnyEngine, database: str
) -> None:
    """The opt-out."""
    inbox = make_inbox(worker=False, concurrency=1, engine=engine, clean_sessions=False)
    inbox.source("stripe", secrets=["whsec_test"])
    register(inbox, "charge.paid", lambda event, session: session.connection().exec_driver_sql("SET app.who = 'A'"))
    async with inbox.lifespan():
        await handle(inbox, database, "charge.paid")
        assert statuses(database) == ["processed"]
        query = "SELECT current_setting('app.who', true)"
        assert await as_app(engine, lambda connection: connection.exec_driver_sql(query).scalar()) == "A"
