"""The sweep sends receipts whose message was not sent or was lost."""

import pytest

from oncehook.worker.queue import health
from tests.support.consumers import send
from tests.support.events import Rows
from tests.support.waiting import eventually, stays_true
from tests.support.work import claim, receipts_are
from tests.support.work_queue import MakeInbox, WorkQueue, count_calls, through_proxy

pytestmark = [pytest.mark.anyio, pytest.mark.sampled(1)]


async def test_the_sweep_sends_events_whose_message_was_lost(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    inbox = make()
    calls = count_calls(inbox)
    async with inbox.lifespan():
        await claim(inbox, "evt_1", "evt_2")  # committed, and the process died before it sent them
        await eventually(receipts_are(rows, "processed", 2))
    assert sorted(calls) == ["evt_1", "evt_2"]


async def test_a_queue_that_is_down_after_the_claim_delays_no_ack_and_loses_no_event(
    make: MakeInbox, queue: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make()
    calls = count_calls(inbox)
    async with through_proxy(queue, monkeypatch) as proxy, inbox.lifespan():
        proxy.refuse()
        await send(inbox, "evt_1", "evt_2")
        proxy.stall()
        proxy.accept()
        await send(inbox, "evt_3")
        await stays_true(lambda: not calls, "workers get no message")
        proxy.flow()
        await eventually(receipts_are(rows, "processed", 3))
    assert sorted(calls) == ["evt_1", "evt_2", "evt_3"]


async def test_workers_lease_from_the_database_while_the_queue_is_down(
    make_inbox: MakeInbox, queue: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.1)
    inbox = make_inbox(worker=True, queue=f"sqs:{queue.url}", lease="30s")
    inbox.source("stripe", secrets=["whsec_test"])
    calls = count_calls(inbox)
    async with through_proxy(queue, monkeypatch) as proxy, inbox.lifespan():
        proxy.refuse()
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "processed", 1))
        proxy.accept()
        work_queue = inbox._runtime.work_queue
        assert work_queue is not None
        await eventually(lambda: not work_queue.health.is_down, "the queue responds again")
        await send(inbox, "evt_2")
        await eventually(receipts_are(rows, "processed", 2))
        await eventually(lambda: queue.is_empty, "the message is deleted")
    assert calls == ["evt_1", "evt_2"]


async def test_a_purged_queue_is_filled_again(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    receiver, inbox = make(worker=False), make()
    async with receiver.lifespan():
        await send(receiver, "evt_1", "evt_2")
        await eventually(lambda: queue.count() == 2, "the messages are sent")
    queue.purge()
    calls = count_calls(inbox)
    async with inbox.lifespan():
        await eventually(receipts_are(rows, "processed", 2))
    assert sorted(calls) == ["evt_1", "evt_2"]
