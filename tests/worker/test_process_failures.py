"""What the processor does when the database fails while it settles or releases, and what others hear from it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, RetryLater, StoreUnavailable
from oncehook.handlers.outbox import Outbox
from oncehook.worker.process import Processor
from oncehook.worker.wakeups import no_announcement
from tests.support.events import Rows
from tests.support.processor import Heard, lease, listen, wakes_within
from tests.support.waiting import hang
from tests.support.work import HISTORY, QUICK, STATES

pytestmark = pytest.mark.anyio

Emitted = list[tuple[str, dict[str, Any]]]


async def no_answer(*_: object) -> Any:
    raise StoreUnavailable("no answer")


async def test_result_that_cannot_be_written_is_logged_and_left_to_its_lease(
    inbox: Inbox, rows: Rows, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None: ...

    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    monkeypatch.setattr(inbox._runtime.store.leases, "settle", no_answer)
    assert await processor.process(leased) is None
    assert ("settle_failed", {"receipt": leased.receipt, "source": "stripe", "detail": "no answer"}) in emitted
    assert (heard.settled, processor.heartbeat.receipts) == ([], [])
    assert rows("SELECT status FROM webhook_receipts") == [("processing",)], "only the lease may end it"


async def test_receipts_that_cannot_be_released_are_logged_and_announced(
    inbox: Inbox, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased, (processor, heard) = await lease(inbox, "evt_1", "evt_2"), listen(inbox)
    for one in leased:
        processor.heartbeat.hold(one.lease_key)
    monkeypatch.setattr(inbox._runtime.store.leases, "release", no_answer)
    await processor._release(leased)
    assert emitted == [("release_failed", {"count": 2, "detail": "no answer"})]
    assert (heard.announced, heard.postponed, processor.heartbeat.receipts) == (1, [], [])


async def test_receipt_without_a_handler_is_due_again_after_five_seconds(inbox: Inbox) -> None:
    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    assert await processor.process(leased) is None
    assert heard == Heard(postponed=[([leased.receipt], 5.0)])
    assert 4 < wakes_within(processor) < 5.1


async def test_observer_hears_nothing_of_a_release_that_came_too_late(inbox: Inbox, rows: Rows) -> None:
    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    rows("UPDATE webhook_receipts SET lease = lease + 1")  # another worker has it
    assert await processor.process(leased) is None
    assert heard == Heard()


async def test_immediate_retry_is_announced_and_a_later_one_is_not(inbox: Inbox) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        raise RetryLater("not yet", after=0 if event.id == "evt_1" else "5s")

    (now, later), (processor, heard) = await lease(inbox, "evt_1", "evt_2"), listen(inbox)
    await processor.process(later)
    assert heard.announced == 0
    assert 4 < wakes_within(processor) < 10
    settled = await processor.process(now)
    assert settled is not None and settled.after == 0
    assert heard.announced == 1
    assert heard.settled == [(later.receipt, "retrying", True), (now.receipt, "retrying", True)]


async def test_failing_commit_is_a_failed_attempt_and_rolls_back(
    inbox: Inbox, rows: Rows, insert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, "written")

    async def fail(outbox: Outbox, settled: object) -> bool:
        raise ConnectionError("the commit failed")

    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    monkeypatch.setattr(Outbox, "settle", fail)
    settled = await processor.process(leased)
    assert settled is not None and settled.after is not None and settled.after <= 0.02, "the handler's policy decides"
    assert rows(HISTORY) == [(1, "retrying", "ConnectionError: the commit failed")]
    assert rows("SELECT * FROM ledger") == []
    assert heard.settled == [(leased.receipt, "retrying", True)]


async def test_stop_during_the_commit_releases_the_receipt(
    inbox: Inbox, rows: Rows, insert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert, event.id, "written")

    committing = asyncio.Event()

    async def wait(outbox: Outbox, settled: object) -> bool:
        committing.set()
        await hang()
        return True

    (leased,), (processor, heard) = await lease(inbox, "evt_1"), listen(inbox)
    monkeypatch.setattr(Outbox, "settle", wait)
    task = asyncio.create_task(processor.process(leased))
    await asyncio.wait_for(committing.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rows(STATES) == [("evt_1", "received", 0, None, None)]
    assert rows("SELECT * FROM ledger") == []
    assert heard == Heard(announced=1)


@pytest.mark.parametrize("uses_tx", [True, False])
async def test_each_receipt_of_a_batch_is_recorded_and_its_lease_is_dropped(
    inbox: Inbox, rows: Rows, insert: str, uses_tx: bool
) -> None:
    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event], tx: Any) -> None:
        if uses_tx:
            await tx.execute(insert, events[0].id, "written")

    leased, (processor, heard) = await lease(inbox, "evt_1", "evt_2"), listen(inbox)
    handler = inbox._runtime.handlers.find("stripe", "invoice.paid", "main")
    assert handler is not None
    await processor.process_batch(handler, leased)
    assert sorted(heard.settled) == [(one.receipt, "processed", True) for one in leased]
    assert processor.heartbeat.receipts == []


async def test_batch_without_writes_logs_each_result_that_cannot_be_written(
    inbox: Inbox, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    @inbox.on("stripe", "invoice.paid", batch=10)
    async def paid(events: list[Event]) -> None: ...

    leased, (processor, heard) = await lease(inbox, "evt_1", "evt_2"), listen(inbox)
    handler = inbox._runtime.handlers.find("stripe", "invoice.paid", "main")
    assert handler is not None
    monkeypatch.setattr(inbox._runtime.store.leases, "settle", no_answer)
    await processor.process_batch(handler, leased)
    failed = [fields for line, fields in emitted if line == "settle_failed"]
    assert failed == [{"receipt": one.receipt, "source": "stripe", "detail": "no answer"} for one in leased]
    assert (heard.settled, processor.heartbeat.receipts) == ([], [])


async def test_processor_uses_the_announcement_and_the_transactions_that_it_is_given(inbox: Inbox) -> None:
    given = inbox._runtime.start_processor()

    def announce() -> None: ...

    made = Processor(inbox._runtime.store, given.handlers, given.heartbeat, transaction=inbox._runtime.outbox)
    assert made.transaction == inbox._runtime.outbox
    assert made.announce is no_announcement
    assert Processor(made.store, given.handlers, given.heartbeat, announce=announce).announce is announce
    assert made.threads_of("main")._free._value == 16


async def test_threads_and_wakeups_of_consumers_are_their_own(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(concurrency=3)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        processor, _ = listen(inbox)
        assert processor.threads_of("main") is processor.threads_of("main") is not processor.threads_of("other")
        assert processor.threads_of("main").name == "oncehook-handler"
        assert processor.threads_of("other").name == "oncehook-handler-other"
        assert processor.threads_of("main")._free._value == 3
        assert processor.wakeups_of("main") is processor.wakeups_of("main") is not processor.wakeups_of("other")
