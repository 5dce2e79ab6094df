"""Receives messages by long polling, and gives each to the worker of its consumer."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from oncehook.brokers.sqs import BATCH, LONG_POLL, Received, SqsQueue
from oncehook.model.errors import BrokerUnavailable
from oncehook.observability import metrics, signals
from oncehook.worker.queue.ends import MessageEnds
from oncehook.worker.queue.feed import QueueFeed
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.message import parse
from oncehook.worker.wakeups import no_announcement

RECEIVES = 2
"""How many receives run at the same time. Each returns up to ten messages."""

WAIT = LONG_POLL
"""Seconds that the queue holds a receive while it is empty."""

FIRST_PAUSE, MAX_PAUSE = 0.2, 10.0
"""Seconds between two receives while the queue does not respond."""


class QueueReceiver:
    """Receives messages while a worker has room for them, and keeps those that workers have invisible."""

    def __init__(
        self,
        queue: SqsQueue,
        feeds: Mapping[str, QueueFeed],
        ends: MessageEnds,
        health: QueueHealth,
        *,
        visibility: float,
        announce: Callable[[], None] = no_announcement,
    ) -> None:
        self._queue = queue
        self._feeds = feeds  # by consumer
        self._ends = ends
        self._health = health
        self._visibility = visibility
        self._announce = announce
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for feed in self._feeds.values():
            feed.has_taken = self._room.set
        loops = [self._keep_receiving() for _ in range(RECEIVES)]
        self._tasks = [asyncio.create_task(loop) for loop in (*loops, self._keep_invisible())]

    async def stop(self) -> None:
        """Stop receiving. Messages that are on their way are delivered again after their visibility."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_receiving(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await self._wait_for_room()
            try:
                self._dispatch(await self._queue.receive(self._visibility, wait=WAIT))
            except BrokerUnavailable as error:
                self._health.failed(error)
                await self._wait(pause)
                pause = min(2 * pause, MAX_PAUSE)
                continue
            except Exception as error:
                signals.log_background_failure("queue receiver", error)
                await self._wait(MAX_PAUSE)
                continue
            pause = FIRST_PAUSE
            self._health.succeeded()

    async def _wait(self, seconds: float) -> None:
        """Wait before the next receive. The workers then lease from the database."""
        await asyncio.sleep(seconds)
        for feed in self._feeds.values():
            feed.ready()

    async def _wait_for_room(self) -> None:
        while not any(feed.has_room for feed in self._feeds.values()):
            self._room.clear()
            await self._room.wait()

    def _dispatch(self, messages: list[Received]) -> None:
        for received in messages:
            message = parse(received)
            if message is None:
                metrics.count("oncehook_queue_ignored_total")
                signals.emit("queue_message_ignored", message_id=received.id[:100])
                self._ends.delete(received)
            elif message.consumer not in self._feeds:  # its handlers are in another process
                self._ends.delete(received)
                self._announce()
            else:
                self._feeds[message.consumer].add(message, is_alone=len(self._feeds) == 1)
        if messages:
            for feed in self._feeds.values():
                feed.ready()

    async def _keep_invisible(self) -> None:
        """Extend the visibility of the messages that workers have, as the heartbeat extends leases."""
        while True:
            await asyncio.sleep(self._visibility / 3)
            messages = [message.received for feed in self._feeds.values() for message in feed.messages]
            for start in range(0, len(messages), BATCH):
                with suppress(BrokerUnavailable):  # the queue delivers them again, and their leases decide
                    batch = messages[start : start + BATCH]
                    await self._queue.change_visibility([(message, self._visibility) for message in batch])
