"""Attempts that end without being counted: postponed by the handler, unreadable for now, or stopped."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from oncehook import Event, Inbox, Retry
from oncehook.config.keyring import KeyMissing
from oncehook.handlers.outbox import Outbox
from oncehook.model.retry import Postpone
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable
from oncehook.testing import deliver
from tests.support.events import Rows
from tests.support.payload_stores import FolderStore, large_body, large_inbox
from tests.support.processor import Heard, lease, listen, wakes_within
from tests.support.waiting import eventually, hang
from tests.support.work import STATES

pytestmark = pytest.mark.anyio


async def test_postponed_event_is_released_without_an_attempt(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        raise Postpone("no free thread", after=7.0)

    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    assert await processor.process(leased, retry_after=60.0) is None
    assert rows(STATES) == [("evt_1", "received", 0, None, None)]
    assert heard == Heard(postponed=[([leased.receipt], 7.0)])


async def test_postponed_event_is_a_failed_attempt_if_the_provider_retries(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        raise Postpone("no free thread", after=7.0)

    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    settled = await processor.process(leased, retry=Retry(attempts=2, first=1, most=1), retry_after=60.0)
    assert settled is not None and settled.after == 60.0, "the provider decides when it is due"
    assert [row[:3] for row in rows(STATES)] == [("evt_1", "retrying", 1)]
    assert heard.settled == [(leased.receipt, "retrying", True)]


async def test_receipt_whose_lease_was_released_does_not_reach_its_handler(inbox: Inbox) -> None:
    handled: list[str] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        handled.append(event.id)

    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    processor.heartbeat._released.add(leased.lease_key)  # by its thread, because the event loop was blocked
    assert await processor.process(leased) is None
    assert (handled, heard) == ([], Heard(postponed=[([leased.receipt], 0.0)]))
    assert wakes_within(processor) < 0.5, "it is due now"


@pytest.mark.parametrize(
    ("error", "after", "line"),
    [
        (KeyMissing("no key", "k1"), 30.0, "key_missing"),
        (ObjectStoreUnavailable("it is down"), 5.0, "payload_store_unavailable"),
        (ObjectStoreUnavailable("it is down", retry_after=9.0), 9.0, "payload_store_unavailable"),
    ],
)
async def test_event_that_may_be_readable_later_is_postponed(
    inbox: Inbox, emitted: list[tuple[str, dict[str, Any]]], error: Any, after: float, line: str
) -> None:
    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    assert await processor.process(replace(leased, body=None, payload_error=error)) is None
    assert heard == Heard(postponed=[([leased.receipt], after)])
    (fields,) = [fields for name, fields in emitted if name == line]
    assert (fields["source"], fields["receipt"]) == ("stripe", leased.receipt)


@pytest.mark.parametrize("error", [KeyMissing("no key", "k1"), ObjectStoreUnavailable("it is down")])
async def test_event_that_may_be_readable_later_waits_as_long_as_its_provider_retries(inbox: Inbox, error: Any) -> None:
    """An inline event whose time is over becomes a dead letter."""
    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    unreadable = replace(leased, body=None, payload_error=error)
    assert await processor.process(unreadable, retry=Retry(attempts=5), retry_after=86_400.0) is None
    assert heard == Heard(postponed=[([leased.receipt], 86_400.0)])


async def test_event_whose_object_is_gone_fails_with_that_reason(inbox: Inbox, rows: Rows) -> None:
    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    assert await processor.process(replace(leased, body=None, payload_error=ObjectMissing("its object is gone")))
    assert heard.settled == [(leased.receipt, "failed", True)]
    assert rows(STATES)[0][4] == "it cannot be handled: its object is gone"


@pytest.mark.parametrize("batch", [None, 10])
async def test_large_event_is_read_from_the_payload_store(
    make_inbox: Callable[..., Inbox], tmp_path: Path, batch: int | None
) -> None:
    inbox = large_inbox(make_inbox, FolderStore(tmp_path / "payloads"))
    bodies: list[bytes] = []

    async def paid(given: Any) -> None:
        bodies.extend(event.raw for event in (given if batch else [given]))

    register: Any = inbox.on
    register("stripe", "*", batch=batch)(paid)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", large_body("evt_1"))
        (leased,) = await inbox._runtime.store.leases.take(1, 30, "test")
        processor, _ = listen(inbox)
        handler = inbox._runtime.handlers.find(leased.source, leased.type, "main")
        assert leased.object is not None and handler is not None
        await (processor.process_batch(handler, [leased]) if batch else processor.process(leased))
    assert bodies == [large_body("evt_1")]


# -- a second cancellation ------------------------------------------------------------------------------------------


class Gate:
    """Holds a method until the gate is open, and counts the calls that ended."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        self.entered, self.open, self.ended = asyncio.Event(), asyncio.Event(), 0

    async def call(self, *arguments: Any) -> Any:
        self.entered.set()
        await self.open.wait()
        result = await self.method(*arguments)
        self.ended += 1
        return result


@pytest.mark.parametrize(("batch", "fails"), [(None, "handler"), (10, "handler"), (None, "commit")])
async def test_stop_does_not_interrupt_a_rollback(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, insert: str, batch: int | None, fails: str
) -> None:
    async def paid(given: Any, tx: Any) -> None:
        await tx.execute(insert, "evt_1", "written")
        if fails == "handler":
            raise ValueError("no")

    async def fail(outbox: Outbox, settled: object) -> bool:
        raise ConnectionError("the commit failed")

    if fails == "commit":
        monkeypatch.setattr(Outbox, "settle", fail)

    register: Any = inbox.on
    register("stripe", "invoice.paid", batch=batch)(paid)
    leased, (processor, _) = await lease(inbox, "evt_1"), listen(inbox)
    handler = inbox._runtime.handlers.find("stripe", "invoice.paid", "main")
    assert handler is not None
    gate = Gate(Outbox.rollback)
    monkeypatch.setattr(Outbox, "rollback", lambda outbox: gate.call(outbox))
    work: Any = processor.process_batch(handler, leased) if batch else processor.process(leased[0])
    task = asyncio.create_task(work)
    await asyncio.wait_for(gate.entered.wait(), 20)
    task.cancel()
    await asyncio.wait([task], timeout=0)
    gate.open.set()
    await asyncio.wait([task])
    await eventually(lambda: gate.ended, "the rollback ends although its caller was cancelled")


@pytest.mark.parametrize("batch", [None, 10])
async def test_second_cancellation_does_not_interrupt_the_release(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    started = asyncio.Event()

    async def paid(given: Any) -> None:
        started.set()
        await hang()

    register: Any = inbox.on
    register("stripe", "invoice.paid", batch=batch)(paid)
    leased, (processor, _) = await lease(inbox, "evt_1"), listen(inbox)
    handler = inbox._runtime.handlers.find("stripe", "invoice.paid", "main")
    assert handler is not None
    gate = Gate(inbox._runtime.store.leases.release)
    monkeypatch.setattr(inbox._runtime.store.leases, "release", gate.call)
    work: Any = processor.process_batch(handler, leased) if batch else processor.process(leased[0])
    task = asyncio.create_task(work)
    await asyncio.wait_for(started.wait(), 20)
    task.cancel()
    await asyncio.wait_for(gate.entered.wait(), 20)
    task.cancel()
    await asyncio.wait([task], timeout=0)
    gate.open.set()
    await eventually(lambda: rows(STATES) == [("evt_1", "received", 0, None, None)], "the receipt is released")
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_stop_while_a_batch_reruns_releases_the_receipts_that_did_not_run(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event]) -> None:
        if len(events) > 1:
            raise ValueError("one by one, please")

    leased, (processor, _) = await lease(inbox, "evt_1", "evt_2"), listen(inbox)
    handler = inbox._runtime.handlers.find("stripe", "invoice.paid", "main")
    assert handler is not None
    gate = Gate(inbox._runtime.store.leases.settle)
    monkeypatch.setattr(inbox._runtime.store.leases, "settle", gate.call)
    task = asyncio.create_task(processor.process_batch(handler, leased))
    await asyncio.wait_for(gate.entered.wait(), 20)
    task.cancel()  # the first receipt is being settled, which is not interrupted
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [row[:3] for row in rows(STATES)] == [("evt_1", "processed", 1), ("evt_2", "received", 0)]
