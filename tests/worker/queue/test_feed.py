"""The feed of a worker with a queue: a message names a receipt, and the database decides."""

import asyncio
from typing import Any

import pytest

from oncehook import Event
from oncehook.brokers.sqs import Received
from oncehook.model.errors import Unavailable
from oncehook.model.lease import Settled
from oncehook.model.patterns import Handled
from oncehook.model.states import State
from oncehook.store.store import Store
from oncehook.testing import advance
from oncehook.worker.feed import DatabaseFeed
from oncehook.worker.queue import receiver
from oncehook.worker.queue.ends import MessageEnds
from oncehook.worker.queue.feed import QueueFeed
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.message import QueueMessage
from tests.support.clocks import ManualClock
from tests.support.consumers import send
from tests.support.events import Rows
from tests.support.stores import missing_table
from tests.support.waiting import eventually, stays_true
from tests.support.work import claim, fail_first_attempts, receipts_are
from tests.support.work_queue import MakeInbox, WorkQueue, count_calls, messages_of

pytestmark = [pytest.mark.anyio, pytest.mark.sampled(1)]


async def test_a_message_that_arrives_twice_at_once_or_later_runs_no_handler_again(
    make: MakeInbox, queue: WorkQueue, rows: Rows, database: str
) -> None:
    inbox = make()
    calls = count_calls(inbox)
    async with inbox.lifespan():
        (receipt,) = await claim(inbox, "evt_1")
        queue.put(*[{"receipt": receipt}] * 10)
        await eventually(lambda: queue.is_empty, "all copies are deleted")
        await advance(inbox, "10m")  # longer than the deduplication of a FIFO queue
        queue.put({"receipt": receipt}, {"receipt": receipt})
        await eventually(lambda: queue.is_empty, "the late copies are deleted")
    assert calls == ["evt_1"]


async def test_messages_out_of_order_do_not_change_the_order_of_a_serial_key(
    make: MakeInbox, queue: WorkQueue, rows: Rows
) -> None:
    inbox = make({"serial_by": "object_id"})
    calls = count_calls(inbox)
    async with inbox.lifespan():
        events = [f"evt_{number}" for number in range(8)]
        receipts = await claim(inbox, *events, serial_key="in_1")
        queue.put(*({"receipt": receipt} for receipt in reversed(receipts)))
        await eventually(receipts_are(rows, "processed", 8))
        await eventually(lambda: queue.is_empty, "the messages are deleted")
    assert calls == events


async def test_a_failed_attempt_comes_back_by_the_queue(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    inbox = make()
    attempts = fail_first_attempts(inbox, 1, first=0.1, most=0.1)
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "retrying", 1))
        assert queue.count() == 1, "its message waits, invisible, for the delay of the retry"
        await eventually(receipts_are(rows, "processed", 1))
        await eventually(lambda: queue.is_empty, "the message is deleted")
    assert attempts == [1, 2]


async def test_a_forged_message_leases_nothing_that_is_not_due(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    inbox = make()
    calls = count_calls(inbox)
    async with inbox.lifespan():
        later, inline = await claim(inbox, "later", "inline")
        (unhandled,) = await claim(inbox, "unhandled", source="github")
        rows(f"UPDATE webhook_receipts SET status = 'retrying', next_attempt_at = '2999-01-01' WHERE id = {later}")
        rows(f"UPDATE webhook_receipts SET is_inline = true WHERE id = {inline}")
        before = rows("SELECT id, status, attempts, lease FROM webhook_receipts ORDER BY id")
        queue.put(*({"receipt": receipt} for receipt in (later, inline, unhandled, 10**18)))
        queue.put({"receipt": inline, "consumer": "nobody"})
        await eventually(lambda: queue.is_empty, "a message that leases nothing does not stay")
        assert rows("SELECT id, status, attempts, lease FROM webhook_receipts ORDER BY id") == before
    assert calls == []


async def test_events_of_a_paused_source_wait_in_the_database(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    inbox = make()
    calls = count_calls(inbox)
    async with inbox.lifespan():
        await inbox.pause("stripe")
        await send(inbox, "evt_1")
        await eventually(lambda: queue.is_empty, "a message that cannot be used does not wait in the queue")
        await stays_true(lambda: not calls, "nothing runs")
        await inbox.resume("stripe")
        await eventually(receipts_are(rows, "processed", 1))


async def test_a_receipt_whose_worker_died_runs_in_isolation(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    inbox = make()
    calls = count_calls(inbox)
    async with inbox.lifespan():
        (receipt,) = await claim(inbox, "evt_1")
        rows(f"UPDATE webhook_receipts SET crashes = 1, status = 'retrying', attempts = 1 WHERE id = {receipt}")
        queue.put({"receipt": receipt})
        await eventually(receipts_are(rows, "processed", 1))
        await eventually(lambda: queue.is_empty, "its message is deleted")
    assert calls == ["evt_1"]


async def test_a_fifo_queue_carries_the_events_of_an_object_in_order(
    make: MakeInbox, fifo: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "WAIT", 1)  # the stand-in looks at the groups only when a receive begins
    inbox = make({"serial_by": "object_id"}, queue=f"sqs:{fifo.url}")
    calls = count_calls(inbox)
    events = [f"evt_{number}" for number in range(5)]
    async with inbox.lifespan():
        await send(inbox, *events)
        await eventually(receipts_are(rows, "processed", 5))
        await eventually(lambda: fifo.is_empty, "the messages are deleted")
    assert calls == events


class Ends(MessageEnds):
    """Records how deliveries end, instead of telling a queue."""

    def __init__(self) -> None:
        self.attributes = None
        self.ended: list[tuple[int, float | None]] = []  # (receipt, seconds); None: deleted

    def delete(self, message: QueueMessage | Received) -> None:
        assert isinstance(message, QueueMessage)
        self.ended.append((message.receipt, None))

    def return_after(self, message: QueueMessage, seconds: float) -> None:
        self.ended.append((message.receipt, seconds))


async def make_feed(store: Store, **options: Any) -> tuple[QueueFeed, Ends]:
    """A feed on an empty store, without a worker. It has queried the database, so its next query is in a minute."""
    ends = Ends()
    database = DatabaseFeed(
        leases=store.leases,
        worker="worker-1",
        lease_seconds=30.0,
        poll=1.0,
        skip_failed=(),
        handled=lambda: Handled((("stripe", "*"),)),
    )
    feed = QueueFeed(database, ends, QueueHealth(), capacity=2, clock=ManualClock(), **options)
    assert await feed.take(10) == []
    return feed, ends


def named(*receipts: int) -> list[QueueMessage]:
    return [QueueMessage(receipt, "main", 0, Received("", f"handle {receipt}")) for receipt in receipts]


async def test_messages_that_do_not_fit_are_deleted_and_the_database_is_queried(store: Store) -> None:
    feed, ends = await make_feed(store)
    receipts = await claim(store, "evt_1", "evt_2", "evt_3", "evt_4")
    for message in named(*receipts):
        feed.add(message, is_alone=False)
    assert (feed.has_room, ends.ended) == (False, [(receipts[2], None), (receipts[3], None)])
    assert [leased.receipt for leased in await feed.take(10)] == receipts
    assert len(feed.messages) == 2


async def test_the_database_is_queried_until_nothing_is_due_there(store: Store) -> None:
    feed, _ = await make_feed(store)
    receipts = await claim(store, "evt_1", "evt_2", "evt_3")
    feed.wake()
    leased = await feed.take(2)
    assert ([each.receipt for each in leased], feed.room(2)) == (receipts[:2], 2)
    assert [each.receipt for each in await feed.take(2)] == receipts[2:]
    await feed.take(1, rescued=True)
    assert feed.room(2) == 0


async def test_a_lease_that_fails_keeps_its_messages(store: Store, rows: Rows) -> None:
    feed, ends = await make_feed(store)
    (receipt,) = await claim(store, "evt_1")
    feed.add(named(receipt)[0], is_alone=True)
    with missing_table(rows, "webhook_receipts"), pytest.raises(Unavailable):
        await feed.take(10)
    assert ([message.receipt for message in feed.messages], ends.ended) == ([receipt], [])
    assert [leased.receipt for leased in await feed.take(10)] == [receipt]


async def test_a_message_is_adopted_by_a_receipt_that_was_leased_without_one(store: Store) -> None:
    feed, ends = await make_feed(store)
    (receipt,) = await claim(store, "evt_1")
    feed.wake()
    (leased,) = await feed.take(10)
    for message in named(receipt, receipt):
        feed.add(message, is_alone=True)
    assert await feed.take(10) == []
    assert ends.ended == [(receipt, None)], "the second copy is deleted"
    feed.settled(leased, Settled(receipt, leased.lease, State.RETRYING, "retrying", after=7.0), True)
    assert ends.ended[1:] == [(receipt, 7.0)]


async def test_a_retry_without_a_message_is_found_in_the_database(store: Store) -> None:
    feed, _ = await make_feed(store)
    (receipt,) = await claim(store, "evt_1")
    feed.wake()
    (leased,) = await feed.take(10)
    ready = asyncio.Event()
    feed.ready = ready.set
    feed.settled(leased, Settled(receipt, leased.lease, State.RETRYING, "retrying", after=0.01), True)
    await asyncio.wait_for(ready.wait(), 5)
    assert feed.room(10) == 10


async def test_a_postponed_receipt_keeps_no_message_and_is_found_in_the_database(store: Store) -> None:
    """The queue counts every delivery, and these led to no attempt."""
    feed, ends = await make_feed(store)
    receipts = await claim(store, "evt_1", "evt_2", "evt_3")
    for message in named(*receipts[:2]):
        feed.add(message, is_alone=True)
    first, second = await feed.take(10)
    ready = asyncio.Event()
    feed.ready = ready.set
    feed.postponed([receipts[2]], 0.0)  # it is not leased here, as an inline one
    assert not feed._looks
    feed.postponed([first.receipt, second.receipt], 0.2)
    feed.ended([first.receipt, second.receipt])
    assert (ends.ended, feed.messages) == ([(receipts[0], None), (receipts[1], None)], [])
    assert feed.room(10) < 10, "they are not due yet"
    await asyncio.wait_for(ready.wait(), 5)
    assert (feed.room(10), feed._looks) == (10, set())


async def test_a_copy_of_the_message_of_a_receipt_that_waits_is_deleted_too(store: Store, rows: Rows) -> None:
    """Else each postponement would count a delivery of the copy."""
    feed, ends = await make_feed(store)
    (receipt,) = await claim(store, "evt_1")
    rows("UPDATE webhook_receipts SET status = 'retrying', next_attempt_at = '2999-01-01'")
    for message in named(receipt):
        feed.add(message, is_alone=True)
    assert await feed.take(10) == []
    assert (ends.ended, len(feed._looks)) == ([(receipt, None)], 1)


async def test_a_worker_that_releases_for_another_reason_than_a_stop_keeps_no_message(
    make: MakeInbox, queue: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make(concurrency=1)
    calls, may_end, returned = list[str](), asyncio.Event(), list[int]()
    monkeypatch.setattr(MessageEnds, "return_after", lambda _, message, seconds: returned.append(message.receipt))

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        calls.append(event.id)
        await may_end.wait()

    async with inbox.lifespan():
        await send(inbox, "evt_1", "evt_2")
        await eventually(lambda: len(messages_of(inbox)) == 2 and len(calls) == 1, "one runs, and one waits")
        await inbox.pause("stripe")
        await eventually(lambda: queue.count() == 1, "the message of the released receipt is deleted")
        assert len(messages_of(inbox)) == 1
        may_end.set()
        await inbox.resume("stripe")
        await eventually(receipts_are(rows, "processed", 2))
        assert returned == [], "the queue would count the next delivery"


async def test_the_message_of_a_lost_lease_is_left_to_its_visibility(store: Store) -> None:
    feed, ends = await make_feed(store)
    (receipt,) = await claim(store, "evt_1")
    feed.add(named(receipt)[0], is_alone=True)
    (leased,) = await feed.take(10)
    feed.settled(leased, Settled(receipt, leased.lease, State.PROCESSED, "processed"), False)
    feed.ended([receipt])
    assert (ends.ended, feed.messages) == ([], [])


async def test_an_event_for_another_process_is_announced(store: Store) -> None:
    announced: list[bool] = []
    feed, ends = await make_feed(store, announce=lambda: announced.append(True))
    (receipt,) = await claim(store, "evt_1", source="github")
    feed.add(named(receipt)[0], is_alone=True)
    assert await feed.take(10) == []
    assert (ends.ended, announced) == ([(receipt, None)], [True])


async def test_a_query_of_the_database_finds_rescued_receipts_too(store: Store, rows: Rows) -> None:
    feed, _ = await make_feed(store)
    assert (await feed.take(1, rescued=True), feed.room(10)) == ([], 0)
    receipts = await claim(store, "evt_1", "evt_2")
    rows("UPDATE webhook_receipts SET crashes = 1")
    assert await feed.take(1, rescued=True) == [], "the next query is in a minute"
    feed.wake()
    assert (await feed.take(10), feed.room(10)) == ([], 1)
    found = [leased.receipt for _ in range(3) for leased in await feed.take(1, rescued=True)]
    assert (found, feed.room(10)) == (receipts, 0)


async def test_too_many_quarantined_messages_are_delivered_later(store: Store, rows: Rows) -> None:
    feed, ends = await make_feed(store)
    receipts = await claim(store, *(f"evt_{number:02d}" for number in range(12)))
    rows("UPDATE webhook_receipts SET crashes = 1")
    for message in named(*receipts):
        feed.add(message, is_alone=True)
    assert await feed.take(20) == []
    assert ends.ended == [(receipts[10], 30.0), (receipts[11], 30.0)]
    assert [leased.receipt for leased in await feed.take(1, rescued=True)] == receipts[:1]
