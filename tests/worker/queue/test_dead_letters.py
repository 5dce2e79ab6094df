"""Dead letters: SQS gives up a message, or the retry policy gives up its event."""

import json
from collections.abc import Callable

import pytest

from oncehook import Event, Inbox
from oncehook.brokers.sqs import SqsQueue
from oncehook.model.retry import Postpone
from oncehook.store.store import Store
from oncehook.worker.queue.dead_letters import DeadLetterWatch
from tests.support.consumers import send
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim, fail_first_attempts, receipts_are
from tests.support.work_queue import LEASE, MakeInbox, WorkQueue

pytestmark = [pytest.mark.anyio, pytest.mark.sampled(1)]


async def test_sqs_gives_up_a_poison_message_and_its_event_is_a_dead_letter(
    make: MakeInbox, dead_queue: WorkQueue, rows: Rows
) -> None:
    inbox = make(queue=f"sqs:{dead_queue.url}")
    attempts = fail_first_attempts(inbox, 99, attempts=10, first=0.1, most=0.1)
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "failed", 1))
        await eventually(lambda: dead_queue.is_empty, "no message is left, also none that the sweep sent again")
    assert dead_queue.dead_count >= 1
    assert attempts[:2] == [1, 2] and len(attempts) < 10, "SQS gives up first: its maxReceiveCount is 2"
    ((error,),) = rows("SELECT last_error FROM webhook_dlq")
    assert error.startswith("SQS moved its message to the dead-letter queue after 2 receives; the last error was: ")


async def test_an_event_that_is_postponed_without_an_attempt_is_no_dead_letter(
    make_inbox: Callable[..., Inbox], dead_queue: WorkQueue, rows: Rows
) -> None:
    """As by a circuit breaker. Five postponements are more than the two receives after which SQS gives up."""
    inbox = make_inbox(worker=True, queue=f"sqs:{dead_queue.url}", lease=LEASE)
    inbox.source("stripe", secrets=["whsec_test"])
    attempts: list[int] = []

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        attempts.append(event.attempt)
        if len(attempts) <= 5:
            raise Postpone("the target is down", after=0.1)

    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "processed", 1))
        await eventually(lambda: dead_queue.is_empty, "no message is left")
    assert (attempts, dead_queue.dead_count) == ([1] * 6, 0)


async def test_the_message_of_a_dead_letter_goes_to_the_dead_letter_queue(
    make: MakeInbox, dead_queue: WorkQueue, rows: Rows
) -> None:
    inbox = make(queue=f"sqs:{dead_queue.url}")
    attempts = fail_first_attempts(inbox, 99, attempts=1)
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "failed", 1))
        await eventually(lambda: dead_queue.dead_count == 1, "the message is in the dead-letter queue")
    assert attempts == [1]


async def test_without_a_dead_letter_queue_the_message_of_a_dead_letter_is_deleted(
    make: MakeInbox, queue: WorkQueue, rows: Rows
) -> None:
    inbox = make()
    fail_first_attempts(inbox, 99, attempts=1)
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "failed", 1))
        await eventually(lambda: queue.is_empty, "the message is deleted")


async def give_up(dead_queue: WorkQueue, store: Store, count: int) -> None:
    """Claim events, and put their messages into the dead-letter queue as SQS does."""
    ids = [f"evt_{number:02}" for number in range(count)]
    for event_id, receipt in zip(ids, await claim(store, *ids), strict=True):
        body = json.dumps({"receipt": receipt, "source": "stripe", "event_id": event_id})
        dead_queue.moto.call("sqs", "SendMessage", QueueUrl=dead_queue.dead_letters, MessageBody=body)


@pytest.mark.parametrize(("reads", "failed"), [(100, 12), (1, 10)])
async def test_one_check_reads_the_whole_dead_letter_queue_up_to_a_number_of_reads(
    store: Store, dead_queue: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch, reads: int, failed: int
) -> None:
    monkeypatch.setattr("oncehook.worker.queue.dead_letters.MAX_READS", reads)
    await give_up(dead_queue, store, 12)
    queue = SqsQueue(dead_queue.url, needed_by="queue")
    await queue.open()
    try:
        await DeadLetterWatch(store.queue, queue).check(await queue.attributes())
    finally:
        await queue.close()
    assert rows("SELECT count(*) FROM webhook_dlq") == [(failed,)]
