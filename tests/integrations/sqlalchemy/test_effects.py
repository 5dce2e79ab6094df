"""Effects and entities in a user's own SQLAlchemy session: one transaction with the ORM's work, of every kind."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from oncehook import Event, Inbox, Retry
from tests.integrations.sqlalchemy.test_transaction import Invoice, dispose, make_engine
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually
from tests.support.work import QUICK

pytestmark = pytest.mark.anyio

EFFECTS = "SELECT key, status FROM webhook_effects WHERE kind <> 'once' ORDER BY key"
INVOICES = "SELECT id, status FROM invoices ORDER BY id"


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def engine(database: str, kind: str) -> AsyncIterator[Engine | AsyncEngine]:
    engine = make_engine(database, kind)
    yield engine
    await dispose(engine)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], engine: Any, rows: Rows) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False, engine=engine, concurrency=32)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE invoices (id TEXT PRIMARY KEY, status TEXT NOT NULL)")
        yield inbox


@pytest.fixture
def sent(inbox: Inbox) -> list[str]:
    calls: list[str] = []
    inbox.effect(name="send")(lambda effect: calls.append(effect.key))
    return calls


def processed(rows: Rows, count: int) -> Callable[[], bool]:
    return lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'") == [(count,)]


async def test_the_session_the_effect_and_the_entity_are_one_transaction(
    inbox: Inbox, rows: Rows, sent: list[str], kind: str
) -> None:
    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id=event.id, status="open"))
        assert await event.advance("invoice", event.id, version=1) is True
        assert await event.effect(f"mail:{event.id}", "send") is True
        assert await event.effect(f"mail:{event.id}", "send") is False
        await tx.execute(text("UPDATE invoices SET status = 'paid'"))
        if event.attempt == 1:
            raise ConnectionError("once more")

    def plain(event: Event, tx: Session) -> None:
        assert event.effect(f"mail:{event.id}", "send") is True
        assert event.effect(f"mail:{event.id}", "send") is False
        tx.add(Invoice(id=event.id, status="paid"))
        assert event.advance("invoice", event.id, version=1) is True
        if event.attempt == 1:
            raise ConnectionError("once more")

    inbox.on("stripe", "*", retry=QUICK)(asynchronous if kind == "async" else plain)
    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: sent == ["mail:evt_1"])
    assert rows(INVOICES) == [("evt_1", "paid")]
    assert rows("SELECT id FROM webhook_entities") == [("evt_1",)]
    assert rows("SELECT count(*) FROM webhook_noops") == [(1,)]
    assert rows("SELECT attempts FROM webhook_receipts") == [(2,)]


@pytest.mark.parametrize("handler", ["async", "plain"])
async def test_a_handler_without_tx_asks_on_any_engine(inbox: Inbox, rows: Rows, sent: list[str], handler: str) -> None:
    async def asynchronous(event: Event) -> None:
        await event.effect(f"mail:{event.id}", "send")

    def plain(event: Event) -> None:
        event.effect(f"mail:{event.id}", "send")

    inbox.on("stripe", "*", retry=Retry(attempts=20, first=0.01, most=0.05))(
        asynchronous if handler == "async" else plain
    )
    await inbox._runtime.store.claims.insert(
        [make_claim(f"evt_{n:02d}") for n in range(40)]
    )  # more than there are threads to settle
    inbox._runtime.start_worker()
    await eventually(processed(rows, 40))
    await eventually(lambda: len(sent) == 40)
    assert len(rows(EFFECTS)) == 40


async def test_work_that_another_event_was_quicker_with_is_rolled_back(
    inbox: Inbox, rows: Rows, sent: list[str], kind: str
) -> None:
    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        event.effect(f"mail:{event.id}", "send")

    def plain(event: Event, tx: Session) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        event.effect(f"mail:{event.id}", "send")

    inbox.on("stripe", "*", once_per="object_id", retry=QUICK)(asynchronous if kind == "async" else plain)
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}") for n in range(6)])
    inbox._runtime.start_worker()
    await eventually(processed(rows, 6))
    assert len(rows(INVOICES)) == len(rows(EFFECTS)) == 1
    assert rows("SELECT count(*) FROM webhook_noops") == [(5,)]


async def test_a_failed_transaction_takes_the_effect_with_it(
    inbox: Inbox, rows: Rows, sent: list[str], kind: str
) -> None:
    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id="in_1", status="paid"))
        await event.effect("mail", "send")

    def plain(event: Event, tx: Session) -> None:
        event.effect("mail", "send")
        tx.add(Invoice(id="in_1", status="paid"))

    rows("INSERT INTO invoices VALUES ('in_1', 'here before') RETURNING id")
    inbox.on("stripe", "*", retry=Retry(attempts=1))(asynchronous if kind == "async" else plain)
    await inbox._runtime.store.claims.insert([make_claim("evt_1")])
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert (rows(EFFECTS), sent) == ([], [])
