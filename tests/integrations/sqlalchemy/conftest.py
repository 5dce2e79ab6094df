"""Fixtures: an inbox on the user's engine, which is asynchronous or synchronous, on both databases."""

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncehook import Event, Inbox, SyncEvent
from tests.support.engines import AnyEngine, by_kind, dispose, make_engine
from tests.support.events import Rows, make_claim

Work = Callable[[Any, Session], None]


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of the engine."""
    name: str = request.param
    return name


@pytest.fixture
async def engine(database: str, kind: str) -> AsyncIterator[AnyEngine]:
    """The user's engine."""
    engine = make_engine(database, kind)
    yield engine
    await dispose(engine)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], engine: AnyEngine, rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox on the user's engine, with one event and no worker yet."""
    inbox = make_inbox(worker=False, engine=engine, concurrency=32)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE invoices (id TEXT PRIMARY KEY, status TEXT NOT NULL)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        yield inbox


@pytest.fixture
def is_sqlite(database: str) -> bool:
    return database.startswith("sqlite")


@pytest.fixture
def on_paid(inbox: Inbox, kind: str) -> Callable[..., None]:
    """Register work on a `Session` as a handler of the kind that the engine needs."""

    def register(work: Work, **options: Any) -> None:
        async def asynchronous(event: Event, tx: AsyncSession) -> None:
            assert isinstance(tx, AsyncSession)
            await tx.run_sync(lambda session: work(event, session))

        def plain(event: SyncEvent, tx: Session) -> None:
            assert isinstance(tx, Session)
            assert threading.current_thread() is not threading.main_thread()
            work(event, tx)

        inbox.on("stripe", "invoice.paid", **options)(by_kind(kind, asynchronous, plain))  # type: ignore[no-untyped-call]

    return register
