"""The sender: committed events go to the queue, off the path of the response."""

from collections.abc import AsyncIterator

import pytest

from oncehook.brokers.sqs import SqsQueue
from oncehook.model.claim import ConsumerClaim
from oncehook.store.store import Store
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.sender import QueueSender
from tests.support.consumers import outcomes_are, record, send
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually, next_turn
from tests.support.work_queue import MakeInbox, WorkQueue

pytestmark = pytest.mark.anyio


async def test_each_consumer_gets_its_own_message(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    inbox = make()
    handled: list[tuple[str, str]] = []
    record(inbox, handled, "main", "billing", "search")
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(outcomes_are(rows, main="processed", billing="processed", search="processed"))
        await eventually(lambda: queue.is_empty, "the messages are deleted")
    assert sorted(handled) == [("billing", "evt_1"), ("main", "evt_1"), ("search", "evt_1")]


@pytest.fixture
async def sender(store: Store, queue: WorkQueue) -> AsyncIterator[QueueSender]:
    """A sender without an inbox."""
    sqs = SqsQueue(queue.url, needed_by="queue")
    await sqs.open()
    yield QueueSender(store.queue, sqs, QueueHealth())
    await sqs.close()


async def offer(sender: QueueSender, store: Store, *ids: str) -> None:
    """Claim events that have another consumer, and offer them together."""
    claims = [make_claim(event_id, copies=(ConsumerClaim("billing"),)) for event_id in ids]
    sender.offer(list(zip(claims, await store.claims.insert(claims), strict=True)))


async def test_a_limited_number_of_events_waits_for_the_lookup_of_other_consumers(
    sender: QueueSender, store: Store, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.worker.queue.sender.COPIES_LIMIT", 2)
    await offer(sender, store, "evt_1", "evt_2", "evt_3")
    await sender.stop()
    assert queue.count() == 3 + 2, "the sweep sends the last one"


async def test_events_that_arrive_during_a_lookup_of_other_consumers_are_looked_up_after_it(
    sender: QueueSender, store: Store, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, asked = store.queue.copies, list[int]()

    async def asking(receipts: list[int]) -> object:
        asked.append(len(receipts))
        if len(asked) == 1:
            await offer(sender, store, "evt_2", "evt_3")
        return await copies(receipts)

    monkeypatch.setattr(store.queue, "copies", asking)
    await offer(sender, store, "evt_1")
    await next_turn()
    await sender.stop()
    assert asked == [1, 2] and queue.count() == 6
