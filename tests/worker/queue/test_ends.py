"""How deliveries end: deleted after the commit, returned by a stop, and only those that succeeded."""

import asyncio
from typing import Any

import pytest

from oncehook import Event, Retry
from oncehook.worker.queue import receiver
from tests.support.consumers import send
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim, receipts_are
from tests.support.work_queue import MakeInbox, WorkQueue, count_calls, messages_of, through_proxy

pytestmark = [pytest.mark.anyio, pytest.mark.sampled(1)]


async def test_an_event_is_processed_by_its_message_which_is_deleted_after_the_commit(
    make: MakeInbox, queue: WorkQueue, rows: Rows, insert: str
) -> None:
    inbox = make()

    @inbox.on("stripe", "*")
    async def handle(event: Event, tx: Any) -> None:
        assert queue.count() >= 1, "the message stays until the commit"
        await tx.execute(insert, event.id, f"attempt {event.attempt}")

    async with inbox.lifespan():
        await send(inbox, "evt_1", "evt_2", "evt_3")
        await eventually(receipts_are(rows, "processed", 3))
        await eventually(lambda: queue.is_empty, "the messages are deleted")
    assert rows("SELECT note FROM ledger") == [("attempt 1",)] * 3


async def test_a_stop_returns_the_messages_that_were_not_handled(
    make: MakeInbox, queue: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "WAIT", 0)  # else the queue gives them to a receive whose caller has gone
    inbox = make(concurrency=1, stop_grace=0.1)
    began = asyncio.Event()

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        began.set()
        await asyncio.Event().wait()

    async with inbox.lifespan():
        await send(inbox, "evt_1", "evt_2", "evt_3")
        await asyncio.wait_for(began.wait(), 20)
        await eventually(lambda: len(messages_of(inbox)) == 3, "the worker has all messages")
    assert queue.count() == 3, "no message is deleted"
    assert queue.attributes()["ApproximateNumberOfMessages"] == "3", "another worker can receive them now"
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("received", 0)] * 3


async def test_a_batch_handler_deletes_only_the_messages_of_events_that_succeeded(
    make: MakeInbox, queue: WorkQueue, rows: Rows
) -> None:
    inbox = make()

    @inbox.on("stripe", "*", batch=10, retry=Retry(attempts=5, first=600, most=600))
    async def handle(events: list[Event]) -> None:
        if any(event.id == "bad" for event in events):
            raise ValueError("bad")

    async with inbox.lifespan():
        receipts = await claim(inbox, "bad", "good_1", "good_2")
        queue.put(*({"receipt": receipt} for receipt in receipts))
        await eventually(receipts_are(rows, "processed", 2))
        await eventually(lambda: queue.count() == 1, "only the message of the failed event is left")
    assert rows("SELECT event_id FROM webhook_receipts WHERE status = 'retrying'") == [("bad",)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("marker", [b"DeleteMessageBatch", b"SendMessageBatch"])
async def test_a_lost_request_or_reply_of_the_queue_runs_no_handler_twice(
    make: MakeInbox, queue: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch, marker: bytes
) -> None:
    """The worker dies before it deletes, or the reply to a send is lost, so that it is sent twice."""
    inbox = make()
    calls = count_calls(inbox)
    async with through_proxy(queue, monkeypatch) as proxy, inbox.lifespan():
        (proxy.lose_request if marker.startswith(b"Delete") else proxy.lose_reply)(marker)
        await send(inbox, "evt_1")
        await asyncio.wait_for(proxy.lost.wait(), 20)
        await eventually(receipts_are(rows, "processed", 1))
        await eventually(lambda: queue.is_empty, "every copy is deleted")
    assert calls == ["evt_1"]
