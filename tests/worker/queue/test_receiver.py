"""The receiver of messages: garbage in the queue, and messages that become visible too early."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from oncehook import Event
from oncehook.brokers.sqs import Received
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.receiver import QueueReceiver
from tests.support.consumers import send
from tests.support.events import Rows
from tests.support.waiting import block_thread, eventually
from tests.support.work import receipts_are
from tests.support.work_queue import MakeInbox, WorkQueue, count_calls

pytestmark = [pytest.mark.anyio, pytest.mark.sampled(1)]


async def test_a_handler_that_outlasts_the_visibility_of_its_message_runs_once(
    make: MakeInbox, queue: WorkQueue, rows: Rows
) -> None:
    inbox = make()
    calls: list[str] = []

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        calls.append(event.id)
        block_thread(2.5)  # nothing extends the visibility, and only the heartbeat's thread extends the lease

    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "processed", 1))
        await eventually(lambda: queue.is_empty, "both deliveries end")
    assert calls == ["evt_1"]


GARBAGE = [
    " ",
    "not json",
    "[1]",
    "[" * 3000,
    '{"receipt": "x"}',
    '{"receipt": -1}',
    '{"receipt": 9999999999999999999999}',
    '{"receipt": 1.5}',
    '{"receipt": true}',
    '{"receipt": 1, "consumer": null}',
    '{"consumer": "main"}',
    "\U0001f600" * 2000,
    "x" * 100_000,
]


async def test_garbage_in_the_queue_is_deleted(
    make: MakeInbox, queue: WorkQueue, rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    inbox = make()
    calls = count_calls(inbox)
    async with inbox.lifespan():
        queue.put(*GARBAGE)
        await eventually(lambda: queue.is_empty, "the messages are deleted")
        await send(inbox, "evt_1")
        await eventually(receipts_are(rows, "processed", 1))
    assert calls == ["evt_1"]
    ignored = {fields["message_id"] for line, fields in emitted if line == "queue_message_ignored"}
    assert len(ignored) == len(GARBAGE), "each is logged; SQS may deliver one of them twice"
    assert "background_failed" not in dict(emitted)


async def test_all_messages_that_workers_have_stay_invisible_in_calls_of_up_to_ten() -> None:
    calls: list[list[Received]] = []

    class Queue:
        async def change_visibility(self, changes: Sequence[tuple[Received, float]]) -> None:
            calls.append([received for received, _ in changes])

    held = [Received("", f"handle {number}") for number in range(23)]
    feed: Any = SimpleNamespace(messages=[SimpleNamespace(received=received) for received in held])
    parts: Any = {"queue": Queue(), "feeds": {"main": feed}, "ends": None, "health": QueueHealth()}
    extending = asyncio.create_task(QueueReceiver(**parts, visibility=0.01)._keep_invisible())
    await eventually(lambda: len(calls) >= 3, "the visibility of all messages is extended")
    extending.cancel()
    assert [len(call) for call in calls[:3]] == [10, 10, 3]
    assert [received for call in calls[:3] for received in call] == held
