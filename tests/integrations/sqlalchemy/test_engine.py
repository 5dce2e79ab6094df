"""The user's engine: checked at start, and not changed by the inbox."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, func, select, text
from sqlalchemy.orm import Session

from oncehook import ConfigurationError, Event, Inbox, SyncEvent
from tests.support.engines import (
    INVOICES,
    Invoice,
    by_kind,
    dispose,
    make_engine,
    work_until,
)
from tests.support.events import Rows, make_claim
from tests.support.servers import Postgres, run_sql

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_engine_whose_listener_begins_transactions_is_accepted(
    inbox: Inbox, rows: Rows, engine: Any, is_sqlite: bool, on_paid: Any, begin: str
) -> None:
    """SQLAlchemy's own recipe against the trap, which users may have in their app."""
    if not is_sqlite:
        pytest.skip("the recipe is for SQLite")
    sync_engine = getattr(engine, "sync_engine", engine)

    @event.listens_for(sync_engine, "connect")
    def on_connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(sync_engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    await dispose(engine)
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")))
    await work_until(inbox, rows, "processed")
    assert rows(INVOICES) == [("evt_1", "paid")]


async def test_sqlite_connections_of_handlers_are_durable_and_do_not_checkpoint(
    inbox: Inbox, rows: Rows, is_sqlite: bool, on_paid: Any
) -> None:
    if not is_sqlite:
        pytest.skip("these are SQLite's")
    seen: list[Any] = []

    def paid(event: Event, session: Session) -> None:
        pragmas = ("journal_mode", "synchronous", "wal_autocheckpoint", "busy_timeout")
        seen.extend(session.scalar(text(f"PRAGMA {pragma}")) for pragma in pragmas)

    on_paid(paid)
    await work_until(inbox, rows, "processed")
    assert seen == ["wal", 2, 0, 5000]


async def start_error(inbox: Inbox) -> str:
    """Start the inbox, which must fail, and return the message."""
    with pytest.raises(ConfigurationError) as error:
        await inbox.start()
    return str(error.value)


async def test_engine_on_another_database_is_an_error(
    make_inbox: Callable[..., Inbox], is_sqlite: bool, kind: str, tmp_path: Path, postgres: Postgres
) -> None:
    other = make_engine(f"sqlite:///{tmp_path / 'other.db'}" if is_sqlite else postgres.database(), kind)
    assert "use the same" in await start_error(make_inbox(engine=other))
    await dispose(other)


def test_engine_of_another_kind_of_database_is_an_error(
    make_inbox: Callable[..., Inbox], is_sqlite: bool, kind: str, tmp_path: Path, postgres: Postgres
) -> None:
    other = make_engine(postgres.url("postgres") if is_sqlite else f"sqlite:///{tmp_path / 'other.db'}", kind)
    with pytest.raises(ConfigurationError, match="the inbox is on"):
        make_inbox(engine=other)


async def test_engine_on_a_database_in_memory_is_an_error(make_inbox: Callable[..., Inbox], is_sqlite: bool) -> None:
    if is_sqlite:
        engine = create_engine("sqlite://")
        assert "a database in memory" in await start_error(make_inbox(engine=engine))
        engine.dispose()


async def test_engine_on_the_same_database_with_another_address_is_accepted(
    make_inbox: Callable[..., Inbox], database: str, is_sqlite: bool, kind: str, tmp_path: Path
) -> None:
    if is_sqlite:
        (tmp_path / "link.db").symlink_to(tmp_path / "inbox.db")
        other = make_engine(f"sqlite:///{tmp_path / 'link.db'}", kind)
    else:
        other = make_engine(database.replace("127.0.0.1", "localhost"), kind)
    async with make_inbox(engine=other).lifespan():
        pass
    await dispose(other)


async def test_engine_with_another_search_path_is_an_error(
    make_inbox: Callable[..., Inbox], database: str, is_sqlite: bool
) -> None:
    if not is_sqlite:
        engine = make_engine(database, "sync", connect_args={"options": "-c search_path=elsewhere"})
        assert "the same search_path" in await start_error(make_inbox(engine=engine))
        await dispose(engine)


async def test_engine_with_autocommit_is_an_error(
    make_inbox: Callable[..., Inbox], database: str, is_sqlite: bool, kind: str
) -> None:
    if not is_sqlite:
        engine = make_engine(database, kind, isolation_level="AUTOCOMMIT")
        assert "AUTOCOMMIT" in await start_error(make_inbox(engine=engine))
        await dispose(engine)


async def test_handler_whose_kind_does_not_match_the_engine_is_an_error(
    make_inbox: Callable[..., Inbox], engine: Any, kind: str
) -> None:
    inbox = make_inbox(engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])

    async def asynchronous(event: Event, tx: Any) -> None: ...

    def plain(event: SyncEvent, tx: Any) -> None: ...

    inbox.on("stripe", "invoice.paid")(by_kind(kind, plain, asynchronous))
    assert "or pass a create_" in await start_error(inbox)


async def test_handler_without_tx_may_be_of_either_kind(inbox: Inbox, rows: Rows, kind: str) -> None:
    async def asynchronous(event: Event) -> None: ...

    def plain(event: SyncEvent) -> None: ...

    inbox.on("stripe", "invoice.paid")(by_kind(kind, plain, asynchronous))
    await work_until(inbox, rows, "processed")


def test_value_that_is_not_an_engine_is_an_error(make_inbox: Callable[..., Inbox], database: str) -> None:
    with pytest.raises(ConfigurationError, match="engine is a str"):
        make_inbox(engine=database)


async def test_open_read_of_the_app_does_not_block_deliveries(
    inbox: Inbox, database: str, kind: str, is_sqlite: bool
) -> None:
    """An app's own sessions read without the write lock: a request that is open stops no delivery."""
    if kind == "sync" and is_sqlite:
        sessions: Any = inbox._runtime.sessions
        engine = sessions.engine
        with engine.connect() as reading:
            reading.execute(select(func.count()).select_from(Invoice))
            await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_2")]), 30)
    assert run_sql(database, "SELECT count(*) FROM webhook_receipts")[0][0] >= 1
