"""Work by SQS, with the setting `queue = "sqs:URL"`: the sender, the receiver of messages, and the sweep.

Events are verified, claimed, committed and acked as without it. After the commit, their receipts go to the queue.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from oncehook.brokers.sqs import BATCH, QueueAttributes, SqsQueue
from oncehook.model.errors import BrokerUnavailable, ConfigurationError
from oncehook.observability import signals
from oncehook.observability.metrics import Key
from oncehook.worker.feed import DatabaseFeed
from oncehook.worker.queue.ends import MessageEnds
from oncehook.worker.queue.feed import QueueFeed
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.receiver import QueueReceiver
from oncehook.worker.queue.sender import QueueSender
from oncehook.worker.queue.sweep import QueueSweep

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

PREFIX = "sqs:"
PERMANENT = {"NonExistentQueue", "QueueDoesNotExist", "AccessDenied", "AccessDeniedException", "InvalidAddress"}
"""Errors of SQS that only a change of the configuration ends."""

CHECK_SECONDS = 5.0
"""How long a start waits for the queue."""

SUMMARY_SECONDS, SUMMARY_TIMEOUT = 5.0, 2.0
"""How long a summary of the queue is shown, and how long a page waits for it."""

Finding = tuple[str, str]  # the level ("ok", "note" or "wrong") and a sentence


class WorkQueue:
    """The queue of one inbox, as a part of its runtime."""

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self.queue = make_queue(runtime)
        self.health = QueueHealth(runtime.clock)
        self.ends = MessageEnds(self.queue, self.health)
        self.sender = QueueSender(runtime.store.queue, self.queue, self.health)
        self.feeds: dict[str, QueueFeed] = {}
        self._receiver: QueueReceiver | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._is_started = False
        self._summary = float("-inf"), ""  # the end of its validity, and the text

    async def start(self) -> None:
        """Open the queue, and send receipts from now on.

        A queue that does not respond is no reason not to start: events are accepted, and workers lease from the
        database. Raises ConfigurationError if the queue does not exist or must not be used.
        """
        await self.queue.open()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                self.ends.attributes = await self.queue.attributes()
        except TimeoutError:
            self.health.failed(BrokerUnavailable(f"the queue did not respond within {CHECK_SECONDS:g} s"))
        except BrokerUnavailable as error:
            if error.code in PERMANENT:
                await self.queue.close()
                raise ConfigurationError(f"queue: {error.detail}") from None
            self.health.failed(error)
        else:
            for sentence in redrive_advice(self.queue.name, self.ends.attributes, longest_retries(self.runtime)):
                signals.emit("queue_advice", detail=sentence)
        self.runtime.reception.enqueue = self.sender.offer
        self.runtime.metrics_exporter.gauges.append(self.gauges)
        self._is_started = True

    def make_feed(self, consumer: str, concurrency: int, database: DatabaseFeed) -> QueueFeed:
        """Make the feed of a consumer's worker."""
        feed = QueueFeed(
            database,
            self.ends,
            self.health,
            capacity=max(BATCH, concurrency),
            announce=self.runtime.announcer.announce,
            clock=self.runtime.clock,
        )
        self.feeds[consumer] = feed
        return feed

    def start_receiving(self) -> None:
        """Receive messages for the feeds, and sweep."""
        lease = self.runtime.settings.lease
        announce = self.runtime.announcer.announce
        self._receiver = QueueReceiver(
            self.queue, self.feeds, self.ends, self.health, visibility=lease, announce=announce
        )
        self._receiver.start()
        sweep = QueueSweep(self.runtime.store, self.queue, self.sender, self.ends, self.health, lease=lease)
        self._sweeping = asyncio.create_task(sweep.keep_sweeping())

    async def stop(self) -> None:
        """Stop receiving, let running handlers finish, and end the deliveries of their messages."""
        if not self._is_started:
            return
        self._is_started = False
        if self._receiver is not None:
            await self._receiver.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for feed in self.feeds.values():
            feed.close()
        await self.runtime.stop_work()
        self.runtime.reception.enqueue = None
        self.runtime.metrics_exporter.gauges.remove(self.gauges)
        await asyncio.gather(self.sender.stop(), self.ends.flush())
        await self.queue.close()

    async def summary(self) -> str:
        """One sentence about the queue, for the dashboard. It is at most SUMMARY_SECONDS old."""
        now = self.runtime.clock.monotonic()
        if now >= self._summary[0]:
            self._summary = now + SUMMARY_SECONDS, await self._summarize()
        return self._summary[1]

    async def _summarize(self) -> str:
        try:
            async with asyncio.timeout(SUMMARY_TIMEOUT):
                attributes = await self.queue.attributes()
        except (BrokerUnavailable, TimeoutError):
            return f"{self.queue.name} does not respond. Workers lease from the database until it does."
        return f"{self.queue.name} has {attributes.waiting:,} waiting messages, and {attributes.in_flight:,} in flight."

    async def gauges(self) -> dict[Key, float]:
        """The number of messages in the queue, for `/metrics`."""
        attributes = await self.queue.attributes()
        return {
            ("oncehook_queue_messages", "waiting"): attributes.waiting,
            ("oncehook_queue_messages", "in_flight"): attributes.in_flight,
            ("oncehook_queue_messages", "delayed"): attributes.delayed,
        }


def make_queue(runtime: "Runtime") -> SqsQueue:
    return SqsQueue(runtime.settings.queue.removeprefix(PREFIX), needed_by="queue")


def longest_retries(runtime: "Runtime") -> int:
    """The most attempts that a handler of this process has."""
    return max((handler.retry.attempts for handler in runtime.handlers), default=0)


def redrive_advice(name: str, attributes: QueueAttributes, attempts: int) -> list[str]:
    """Return a sentence for each property of a queue that does not fit the retry policies."""
    if attributes.max_receives is None:
        return [
            f"the queue {name} has no dead-letter queue. Events still become dead letters after their last attempt; "
            f"set a RedrivePolicy to have their messages too"
        ]
    if attributes.max_receives <= attempts:
        return [
            f"the queue {name} has maxReceiveCount {attributes.max_receives}, and a handler has up to {attempts} "
            f"attempts: SQS gives up first, and the event becomes a dead letter early. Set it to {2 * attempts}"
        ]
    return []


async def examine_queue(runtime: "Runtime") -> list[Finding]:
    """Return the findings of `oncehook doctor` about the queue."""
    queue = make_queue(runtime)
    try:
        await queue.open()
        attributes = await queue.attributes()
        kind = "FIFO" if queue.is_fifo else "standard"
        counts = f"{attributes.waiting:,} waiting, {attributes.in_flight:,} in flight"
        findings = [("ok", f"queue: {queue.name} ({kind}) responds; {counts}")]
        findings += [("note", text) for text in redrive_advice(queue.name, attributes, longest_retries(runtime))]
        if attributes.dead_letter_arn is not None:
            dead_letters = await queue.dead_letter_queue(attributes.dead_letter_arn)
            length = (await dead_letters.attributes()).total
            if length:
                findings.append(("note", f"queue: {dead_letters.name} has {length:,} dead letters; `oncehook dead`"))
        return findings
    except (BrokerUnavailable, ConfigurationError) as error:
        return [("wrong", f"queue: {error}")]
    finally:
        with suppress(Exception):
            await queue.close()
