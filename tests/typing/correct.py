"""Code that uses the public types as intended: both checkers accept it, and infer these types."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict, assert_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from oncehook import (
    AsyncTransaction,
    Effect,
    Event,
    Fail,
    Inbox,
    Payload,
    Pruned,
    Receipt,
    Rehearsal,
    Replayed,
    Retry,
    RetryLater,
    Row,
    State,
    SyncEvent,
    SyncTransaction,
)
from oncehook.email import Allowed, Blocked

inbox = Inbox("sqlite:///inbox.db", worker=False, concurrency=4, lease="30s", max_body="1MiB", stop_grace=5)
inbox.source("stripe", secrets=["env:SECRET"], types=["invoice.*"], mode="queued", retry=Retry(attempts=3))
inbox.source("github", secrets=["env:SECRET"], retry={"attempts": 5, "first": "2s"}, timeout=10, serial_by="object_id")


class Invoice(TypedDict):
    id: str


# -- events ---------------------------------------------------------------------------------------------------------


@inbox.effect
async def send_receipt(effect: Effect, to: str) -> None:
    assert_type(effect.idempotency_key, str)
    assert_type(effect.attempt, int)


@inbox.on("stripe", "invoice.paid", retry=Retry(attempts=3), timeout="30s", once_per="object_id")
async def paid(event: Event, tx: AsyncTransaction) -> None:
    assert_type(event.id, str)
    assert_type(event.occurred_at, datetime | None)
    assert_type(event.headers, dict[str, str])
    assert_type(await event.effect("receipt:1", send_receipt, to="jane@example.com"), bool)
    assert_type(await event.publish("paid", {"id": 1}), bool)
    assert_type(await event.enqueue("shop.send", 1, key="send:1", to="jane@example.com"), bool)
    assert_type(await event.advance("invoice", event.object_id, state="paid", terminal=True), bool)
    assert_type(await event.is_stale("invoice", event.object_id, version=3), bool)
    assert_type(await event.canonical(), Any)
    assert_type(event.idempotency_key("mail"), str)


@inbox.on("stripe", "invoice.failed")
def failed(event: SyncEvent, tx: SyncTransaction) -> None:
    assert_type(event.effect("receipt:1", send_receipt, to="jane@example.com"), bool)
    assert_type(event.publish("failed", {"id": 1}), bool)
    assert_type(event.enqueue("shop.send", 1, to="jane@example.com"), bool)
    assert_type(event.advance("invoice", event.object_id, at=None, version=1), bool)
    assert_type(event.is_stale("invoice", event.object_id), bool)
    assert_type(event.canonical(), Any)
    event.effect("receipt:2", "send_receipt", to="jane@example.com")  # its answer is not needed
    if event.attempt > 3:
        raise Fail("never")
    raise RetryLater("not now", after="5m")


@inbox.on("stripe", "charge.*")
async def only_the_event(event: Event) -> int:
    return event.attempt


@inbox.on("stripe", "typed.*")
async def typed(event: Event, invoice: Annotated[Invoice, Payload("data.object")], tx: AsyncSession) -> None:
    assert_type(invoice["id"], str)


@inbox.on("stripe", "session.*")
def in_a_session(event: SyncEvent, tx: Session) -> None: ...


@inbox.on("stripe", "batch.*", batch=100)
async def batch(events: list[Event], tx: AsyncTransaction) -> None: ...


@inbox.on("stripe", "other.*", batch=100)
def sync_batch(events: Sequence[SyncEvent]) -> None: ...


# -- decorators keep the type of the function -----------------------------------------------------------------------


@inbox.effect(name="other", retry=Retry(attempts=2))
def named(effect: Effect, number: int) -> str:
    return str(number)


@inbox.subscribe("paid")
async def paid_message(effect: Effect, payload: dict[str, Any]) -> None: ...


@inbox.canonical("stripe")
async def fetch(event: Event) -> dict[str, Any]:
    return {}


accepts_named: Callable[[Effect, int], str] = named


# -- transactions ---------------------------------------------------------------------------------------------------


async def with_tx(tx: AsyncTransaction) -> None:
    assert_type(await tx.execute("DELETE FROM invoices WHERE id = ?", 1), int | str)
    assert_type(await tx.fetch("SELECT 1"), Sequence[Row])
    assert_type(await tx.fetchrow("SELECT 1"), Row | None)
    await tx.executemany("INSERT INTO invoices VALUES (?)", [(1,), (2,)])
    total: int = await tx.fetchval("SELECT count(*) FROM invoices")
    async with tx.transaction():
        await tx.execute("DELETE FROM invoices WHERE id = ?", total)


def with_sync_tx(tx: SyncTransaction) -> None:
    assert_type(tx.execute("DELETE FROM invoices WHERE id = ?", 1), int | str)
    assert_type(tx.fetch("SELECT 1"), Sequence[Row])
    assert_type(tx.fetchrow("SELECT 1"), Row | None)
    for row in tx.fetch("SELECT id FROM invoices"):
        assert_type(row["id"], Any)
    with tx.transaction():
        tx.executemany("INSERT INTO invoices VALUES (?)", [(1,), (2,)])


# -- the inbox ------------------------------------------------------------------------------------------------------


async def operate() -> None:
    async for receipt in inbox.events(source="stripe", status="failed", since="2h", limit=10):
        assert_type(receipt, Receipt)
        assert_type(receipt.status, State)
    assert_type(await inbox.replay(1, "evt_1", actor="jane"), Replayed)
    assert_type(await inbox.replay(status=State.FAILED, since=timedelta(days=2), rate="50/s", dry_run=True), Replayed)
    assert_type(await inbox.rehearse("evt_1"), list[Rehearsal])
    assert_type(await inbox.pause("stripe", duration="2h", reason="migration"), bool)
    assert_type(await inbox.resume("stripe"), bool)
    assert_type(await inbox.prune(dry_run=True), Pruned | None)
    assert_type(await inbox.metrics(), bytes)
    if answer := await inbox.email.can_send("jane@example.com"):
        assert_type(answer, Allowed | Blocked)


def operate_in_a_script() -> None:
    with inbox.running(worker=False) as running:
        for receipt in running.events(source="stripe", since="2h"):
            assert_type(receipt, Receipt)
        assert_type(running.replay(1, "evt_1", actor="jane"), Replayed)
        assert_type(running.replay(status=State.FAILED, since=timedelta(days=2), dry_run=True), Replayed)
        assert_type(running.rehearse("evt_1"), list[Rehearsal])
        assert_type(running.pause("stripe", duration="2h"), bool)
        assert_type(running.prune(dry_run=True), Pruned | None)
        assert_type(running.metrics(), bytes)
        assert_type(running.run(inbox.email.can_send("jane@example.com")), Allowed | Blocked)


async def use(app: object) -> AsyncIterator[None]:
    assert_type(inbox.lifespan(app), AbstractAsyncContextManager[None])
    async with inbox.lifespan():
        await inbox.ready()
        yield
