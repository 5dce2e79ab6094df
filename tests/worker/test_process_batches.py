"""Batch handlers: many receipts in one transaction, and one by one if that fails."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.operations.forget import forget
from oncehook.testing import drain
from tests.support.events import Rows
from tests.support.waiting import eventually, hang, let_time_pass
from tests.support.work import HISTORY, QUICK, STATES, claim, receipts_are

pytestmark = pytest.mark.anyio


async def test_one_failing_event_of_a_batch_does_not_fail_the_others(inbox: Inbox, rows: Rows, insert: str) -> None:
    sizes: list[int] = []

    @inbox.on("stripe", "invoice.paid", batch=50, retry=Retry(attempts=1))
    async def paid(events: list[Event], tx: Any) -> None:
        sizes.append(len(events))
        for event in events:
            await tx.execute(insert, event.id, "batch")
            if event.id == "evt_13":
                raise ValueError("poison")

    await claim(inbox, *(f"evt_{n:02d}" for n in range(50)))
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 49))
    await eventually(receipts_are(rows, "failed", 1))
    assert sizes[0] == 50
    assert len(rows("SELECT DISTINCT event_id FROM ledger")) == 49
    assert rows("SELECT count(*) FROM ledger") == [(49,)]
    assert rows("SELECT event_id, attempts FROM webhook_receipts WHERE status = 'failed'") == [("evt_13", 1)]


async def test_leases_of_events_that_wait_for_their_own_attempt_are_extended(
    inbox: Inbox, rows: Rows, insert: str
) -> None:
    """The attempts one by one take longer than a lease, which is 1.5 s here, and than the timeout of a handler."""
    calls: list[str] = []

    @inbox.on("stripe", "invoice.paid", batch=10, timeout=2.0)
    async def paid(events: list[Event], tx: Any) -> None:
        if len(events) > 1:
            raise ValueError("not together")
        calls.append(events[0].id)
        await let_time_pass(0.6)
        await tx.execute(insert, events[0].id, "")

    await claim(inbox, *(f"evt_{n}" for n in range(1, 9)))
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 8), "every event is processed")
    assert [row[:3] for row in rows(STATES)] == [(f"evt_{n}", "processed", 1) for n in range(1, 9)]
    assert len(calls) == 8, "no event is handled again because its lease expired"


async def test_an_erased_event_of_a_batch_fails_without_its_handler(inbox: Inbox, rows: Rows, insert: str) -> None:
    calls: list[list[str]] = []

    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event], tx: Any) -> None:
        calls.append([event.id for event in events])
        for event in events:
            await tx.execute(insert, event.id, "batch")

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    ((erased,),) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_2'")
    assert await forget(inbox._runtime.store, [erased], actor="a test", object_id="in_1") == 1
    await drain(inbox)
    assert calls == [["evt_1", "evt_3"]]
    assert sorted(rows("SELECT event_id FROM ledger")) == [("evt_1",), ("evt_3",)]
    assert rows(STATES) == [
        ("evt_1", "processed", 1, "processed", None),
        ("evt_2", "failed", 1, "failed", "its payload was erased"),
        ("evt_3", "processed", 1, "processed", None),
    ]


async def test_a_lost_lease_in_a_batch_without_writes_affects_only_its_own_event(inbox: Inbox, rows: Rows) -> None:
    calls: list[list[str]] = []

    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event]) -> None:
        calls.append([event.id for event in events])
        if len(calls) == 1:  # as a rescuer would, while this one is busy
            rows("UPDATE webhook_receipts SET status = 'retrying' WHERE event_id = 'evt_2'")

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    await drain(inbox)
    assert calls == [["evt_1", "evt_2", "evt_3"], ["evt_2"]]
    assert [row[:3] for row in rows(STATES)] == [
        ("evt_1", "processed", 1), ("evt_2", "processed", 2), ("evt_3", "processed", 1)
    ]  # fmt: skip
    assert sorted(rows(HISTORY)) == [(1, "processed", None), (1, "processed", None), (2, "processed", None)]


async def test_a_stop_during_a_batch_releases_all_its_receipts(inbox: Inbox, rows: Rows, insert: str) -> None:
    inside = asyncio.Event()

    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event], tx: Any) -> None:
        for event in events:
            await tx.execute(insert, event.id, f"attempt {event.attempt}")
        if not inside.is_set():
            inside.set()
            await asyncio.Event().wait()

    await claim(inbox, "evt_1", "evt_2", "evt_3")
    inbox._runtime.start_worker()
    assert inbox._runtime.worker is not None
    await asyncio.wait_for(inside.wait(), 10)
    await inbox._runtime.worker.stop(grace=0.05)
    assert [row[:3] for row in rows(STATES)] == [(f"evt_{n}", "received", 0) for n in (1, 2, 3)]
    assert rows("SELECT * FROM ledger") == rows(HISTORY) == []
    inbox._runtime.worker = None
    await drain(inbox)
    assert sorted(rows("SELECT * FROM ledger")) == [(f"evt_{n}", "attempt 1") for n in (1, 2, 3)]


@pytest.mark.parametrize("batch", [None, 10])
async def test_a_handler_that_raises_cancelled_error_itself_has_failed(
    inbox: Inbox, rows: Rows, batch: int | None
) -> None:
    async def paid(batch_or_event: Any, tx: Any) -> None:
        await tx.fetchval("SELECT 1")
        inner = asyncio.create_task(hang())
        inner.cancel()
        await inner

    register: Any = inbox.on
    register("stripe", "invoice.paid", retry=QUICK, batch=batch)(paid)

    await claim(inbox, "evt_1", "evt_2")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "failed", 2))
    assert [row[:3] for row in rows(STATES)] == [("evt_1", "failed", 3), ("evt_2", "failed", 3)]
    assert rows("SELECT DISTINCT error FROM webhook_attempts") == [("CancelledError: ",)]


async def test_a_hanging_event_of_a_batch_does_not_fail_the_others(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    """The lease is 3 s. The events that wait behind the hanging one, twice for 2 s, must keep their leases."""
    inbox = make_inbox(worker=True, lease="3s")
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid", batch=10, timeout="2s", retry=Retry(attempts=1))
    async def paid(events: list[Event], tx: Any) -> None:
        if any(event.id == "evt_2" for event in events):
            await asyncio.Event().wait()

    async with inbox.lifespan():
        await claim(inbox, *(f"evt_{n}" for n in range(1, 6)))
        await eventually(lambda: not rows("SELECT 1 FROM webhook_receipts WHERE status NOT IN ('processed', 'failed')"))
    assert [row[:3] for row in rows(STATES)] == [
        (f"evt_{n}", "failed" if n == 2 else "processed", 1) for n in range(1, 6)
    ]


async def test_a_stop_while_a_batch_reruns_waits_only_for_the_grace_period(inbox: Inbox, rows: Rows) -> None:
    inside = asyncio.Event()

    @inbox.on("stripe", "invoice.paid", batch=10, retry=Retry(attempts=1))
    async def paid(events: list[Event], tx: Any) -> None:
        if len(events) > 1:
            raise ValueError("a batch of more than one event")
        if events[0].id != "evt_1":
            inside.set()
            await hang()

    await claim(inbox, *(f"evt_{n}" for n in range(1, 6)))
    inbox._runtime.start_worker()
    await asyncio.wait_for(inside.wait(), 20)
    started = time.monotonic()
    await inbox._runtime.worker.stop(grace=0.1)  # type: ignore[union-attr]
    assert time.monotonic() - started < 15
    assert [row[:3] for row in rows(STATES)] == [
        ("evt_1", "processed", 1), *((f"evt_{n}", "received", 0) for n in range(2, 6))
    ]  # fmt: skip
