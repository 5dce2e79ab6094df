"""Effects and entities in the user's SQLAlchemy session: one transaction with the ORM's work."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncehook import Event, Inbox, Retry, SyncEvent
from tests.support.engines import INVOICES, Invoice, by_kind
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually
from tests.support.work import QUICK, receipts_are

pytestmark = pytest.mark.anyio

EFFECTS = "SELECT key, status FROM webhook_effects WHERE kind <> 'once' ORDER BY key"


@pytest.fixture
def sent(inbox: Inbox) -> list[str]:
    calls: list[str] = []
    inbox.effect(name="send")(lambda effect: calls.append(effect.key))
    return calls


async def test_session_effect_and_entity_commit_in_one_transaction(
    inbox: Inbox, rows: Rows, sent: list[str], kind: str
) -> None:
    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id=event.id, status="open"))
        assert await event.advance("invoice", event.id, version=1) is True
        assert await event.effect(f"mail:{event.id}", "send") is True
        assert await event.effect(f"mail:{event.id}", "send") is False
        await tx.flush()  # SQLAlchemy 2.0 does not flush before a statement in plain text, 2.1 does
        await tx.execute(text("UPDATE invoices SET status = 'paid'"))
        if event.attempt == 1:
            raise ConnectionError("once more")

    def plain(event: SyncEvent, tx: Session) -> None:
        assert event.effect(f"mail:{event.id}", "send") is True
        assert event.effect(f"mail:{event.id}", "send") is False
        tx.add(Invoice(id=event.id, status="paid"))
        assert event.advance("invoice", event.id, version=1) is True
        if event.attempt == 1:
            raise ConnectionError("once more")

    inbox.on("stripe", "*", retry=QUICK)(by_kind(kind, asynchronous, plain))
    inbox._runtime.start_worker()
    await eventually(lambda: sent == ["mail:evt_1"])
    assert rows(INVOICES) == [("evt_1", "paid")]
    assert rows("SELECT id FROM webhook_entities") == [("evt_1",)]
    assert rows("SELECT count(*) FROM webhook_noops") == [(1,)]
    assert rows("SELECT attempts FROM webhook_receipts") == [(2,)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("handler", ["async", "plain"])
async def test_handler_without_tx_requests_effects_on_either_kind_of_engine(
    inbox: Inbox, rows: Rows, sent: list[str], handler: str
) -> None:
    async def asynchronous(event: Event) -> None:
        await event.effect(f"mail:{event.id}", "send")

    def plain(event: SyncEvent) -> None:
        event.effect(f"mail:{event.id}", "send")

    inbox.on("stripe", "*", retry=Retry(attempts=20, first=0.01, most=0.05))(by_kind(handler, asynchronous, plain))
    await inbox._runtime.store.claims.insert(
        [make_claim(f"evt_{n:02d}") for n in range(2, 41)]
    )  # more than there are threads to settle
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 40))
    await eventually(lambda: len(sent) == 40)
    assert len(rows(EFFECTS)) == 40


async def test_work_of_a_once_per_identity_that_another_event_handled_is_rolled_back(
    inbox: Inbox, rows: Rows, sent: list[str], kind: str
) -> None:
    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        await event.effect(f"mail:{event.id}", "send")

    def plain(event: SyncEvent, tx: Session) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        event.effect(f"mail:{event.id}", "send")

    inbox.on("stripe", "*", once_per="object_id", retry=QUICK)(by_kind(kind, asynchronous, plain))
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}") for n in range(2, 7)])
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 6))
    assert len(rows(INVOICES)) == len(rows(EFFECTS)) == 1
    assert rows("SELECT count(*) FROM webhook_noops") == [(5,)]


async def test_failed_transaction_records_no_effect(inbox: Inbox, rows: Rows, sent: list[str], kind: str) -> None:
    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id="in_1", status="paid"))
        await event.effect("mail", "send")

    def plain(event: SyncEvent, tx: Session) -> None:
        event.effect("mail", "send")
        tx.add(Invoice(id="in_1", status="paid"))

    rows("INSERT INTO invoices VALUES ('in_1', 'here before') RETURNING id")
    inbox.on("stripe", "*", retry=Retry(attempts=1))(by_kind(kind, asynchronous, plain))
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert (rows(EFFECTS), sent) == ([], [])
