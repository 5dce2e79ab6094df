"""Dead letters: SQS gives up a message, or the retry policy gives up its event."""

from collections.abc import Callable

import pytest

from oncehook import Event, Inbox
from oncehook.model.retry import Postpone
from tests.support.consumers import send
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import fail_first_attempts, receipts_are
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
