"""An engine whose pool has one connection, which the app and all handlers share."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncehook import Fail, Inbox, Retry, SyncEvent
from tests.support import sessions
from tests.support.engines import AnyEngine
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import statuses
from tests.support.waiting import eventually

ONCE = Retry(attempts=1)


Work = Callable[[Any, Session], object]


def make_single_engine(database: str, driver: str, **options: Any) -> AnyEngine:
    """An engine whose pool has one connection, which the app and all handlers share."""
    scheme, rest = database.split(":", 1)
    name, _, kind = driver.partition(" ")
    if "poolclass" not in options:
        options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5} | options
    make: Callable[..., AnyEngine] = create_async_engine if kind == "async" else create_engine
    return make(f"{scheme}+{name}:{rest}", **options)


def sync_part(engine: AnyEngine) -> Engine:
    return engine.sync_engine if isinstance(engine, AsyncEngine) else engine


async def as_app(engine: AnyEngine, work: Callable[[Connection], Any]) -> Any:
    """Run `work` as a request of the app, on the same pool."""
    if isinstance(engine, AsyncEngine):
        async with engine.connect() as connection:
            return await connection.run_sync(work)
    with engine.connect() as plain:
        return work(plain)


def register(inbox: Inbox, type: str, work: Work, **options: Any) -> None:
    async def asynchronous(event: Any, tx: AsyncSession) -> None:
        await tx.run_sync(lambda session: work(event, session))

    def plain(event: Any, tx: Session) -> None:
        work(event, tx)

    user_sessions: Any = inbox._runtime.sessions
    is_async = isinstance(user_sessions.engine, AsyncEngine)
    handler: Any = asynchronous if is_async else plain
    inbox.on("stripe", type, **{"retry": ONCE, **options})(handler)  # type: ignore[no-untyped-call]


async def handle(inbox: Inbox, database: str, *types: str) -> None:
    """Handle one event of each type: each is settled before the next one arrives."""
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
        run_sql(database, "CREATE TABLE ledger (note TEXT)")
        run_sql(database, "CREATE TABLE customers (name TEXT)")
        run_sql(database, "INSERT INTO customers VALUES ('of everybody')")
        return
    for statement in sessions.OBJECTS:
        run_sql(database, statement)
    run_sql(database, sessions.CREATE_ROLE)


async def assert_isolation(
    inbox: Inbox,
    engine: AnyEngine,
    database: str,
    leave: Work,
    state: Callable[[Connection], dict[str, Any]],
    *,
    with_app: bool = True,
) -> list[dict[str, Any]]:
    """Run handlers that leave session state, and assert that neither other handlers nor the app see any of it.

    Returns the state that the other handlers saw.
    """
    seen: list[dict[str, Any]] = []
    app = [await as_app(engine, state)]

    def leave_and_fail(event: SyncEvent, session: Session) -> None:
        leave(event, session)
        raise Fail("after all that")

    register(inbox, "invoice.paid", lambda event, session: seen.append(state(session.connection())))
    register(inbox, "charge.paid", leave)
    register(inbox, "charge.failed", leave_and_fail)
    types = ["invoice.paid", "charge.paid", "invoice.paid", "charge.failed", "invoice.paid", "charge.paid"]
    for type in [*types, "charge.failed"]:
        await handle(inbox, database, type)
        if with_app:
            app.append(await as_app(engine, state))
    assert statuses(database) == ["processed"] * 3 + ["failed"] + ["processed"] * 2 + ["failed"]
    assert seen == [seen[0]] * 3
    assert app == [app[0]] * (8 if with_app else 1)
    return seen


def listen(engine: AnyEngine, *statements: str) -> list[int]:
    """Run these statements in a `connect` listener of the app. Returns a list with an item per call."""
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
