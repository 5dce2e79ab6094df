"""Kafka as the broker of an intake: an idempotent producer, and a consumer group whose offsets follow the claims.

The group is `oncehook-SOURCE`, or that of the option `group`. Every process of the source joins it. An offset is
committed only when every message before it is claimed or set aside, never automatically. When a partition goes to
another consumer, only the offsets of claimed messages are committed, and the other consumer gets the rest. A rejected
message is published to TOPIC.rejected, if that topic exists; it also stays in its topic.

The client library blocks, so one thread makes all of its calls. While messages are held, the partitions are paused and
the thread keeps polling: a consumer that does not poll loses its partitions.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Record

from oncehook.brokers.address import BrokerAddress
from oncehook.brokers.kafka import client_settings
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message as Outgoing
from oncehook.brokers.publisher import NotStored
from oncehook.intake.broker import Message, QueueStatus
from oncehook.intake.formats import header_pairs
from oncehook.intake.offsets import Offsets
from oncehook.model.errors import BrokerUnavailable, ConfigurationError, SendFailed

CALL_SECONDS = 5.0
WAIT_SECONDS = 1.0
"""For how long a `receive` waits for a message. Other calls to the library wait for it."""

SESSION_SECONDS = 45.0
"""After how many seconds without a heartbeat other consumers get the partitions of a process that died."""

MAX_MESSAGE = 900_000
"""Below the limit of 1 MB that topics have by default."""

Result = TypeVar("Result")


class KafkaBroker:
    """Implements `Broker` on one topic of Kafka."""

    parallel = 1
    batch = 500
    extend_every = 2.0
    max_message = MAX_MESSAGE

    def __init__(self, address: BrokerAddress, source: str) -> None:
        self.name = f"kafka:{address.name}"
        self._where = f"sources.{source}.intake"
        self._address = address
        self._group = address.options.get("group", f"oncehook-{source}")
        self._publishers = Publishers()
        self._consumer: Consumer | None = None
        self._is_subscribed = False
        self._is_down = False
        self._offsets = Offsets()
        self._early: list[Record] = []  # messages that arrived while others were held
        self._thread: ThreadPoolExecutor | None = None

    async def start(self) -> None:
        self._address = self._address.resolve_password(self._where)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oncehook-kafka")
        await self._call(self._check_topic)

    async def stop(self) -> None:
        """Leave the group. What is claimed is committed."""
        await self._publishers.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    async def publish(self, body: bytes, message_id: str) -> None:
        await self._send(self._address, Outgoing(key=message_id, body=body))

    async def receive(self, *, wait: bool = True) -> list[Message]:
        return await self._call(self._receive, WAIT_SECONDS if wait else 0.0)

    async def ack(self, messages: Sequence[Message]) -> None:
        await self._call(self._finish, [message.handle for message in messages])

    async def extend(self, messages: Sequence[Message]) -> None:
        await self._call(self._keep_alive)

    async def release(self, messages: Sequence[Message]) -> None:
        await self._call(self._rewind, [message.handle for message in messages])

    async def reject(self, message: Message, reason: str) -> None:
        """Publish a message to TOPIC.rejected. If that topic does not exist, the message only stays where it is."""
        rejected = replace(self._address, path=(f"{self._address.name}.rejected",))
        headers = {name.decode(): value.decode("latin-1") for name, value in message.headers}
        outgoing = Outgoing(key=message.id, body=message.body, headers={**headers, "Oncehook-Reason": reason})
        try:
            await self._send(rejected, outgoing)
        except NotStored:
            pass
        await self.ack([message])

    async def status(self) -> QueueStatus:
        """Count the messages after the committed offsets. `in_flight` counts those of this process."""
        waiting = await self._run(None, self._count_waiting)
        return QueueStatus(waiting=max(0, waiting - self._offsets.in_flight), in_flight=self._offsets.in_flight)

    async def _send(self, address: BrokerAddress, message: Outgoing) -> None:
        try:
            await self._publishers.publish(address, message, timeout=CALL_SECONDS)
        except SendFailed as error:
            raise BrokerUnavailable(str(error)) from None

    async def _call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function in the consumer's thread."""
        if self._thread is None:
            raise BrokerUnavailable(f"{self.name} is stopped")
        return await self._run(self._thread, function, *args)

    async def _run(self, thread: ThreadPoolExecutor | None, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function in a thread. Raises BrokerUnavailable for every error of the library."""
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, function, *args)
        except KafkaException as error:
            reason = error.args[0].name() if isinstance(error.args[0], KafkaError) else type(error).__name__
            raise BrokerUnavailable(f"{self._address.origin}: {reason}") from None
        except RuntimeError as error:  # a call after the consumer was closed
            raise BrokerUnavailable(f"{self._address.origin}: {type(error).__name__}") from None

    # -- in the thread --------------------------------------------------------------------------------------------

    def _open(self) -> Consumer:
        """The consumer. It connects by itself, and again after a failure."""
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **client_settings(self._address),
                    "group.id": self._group,
                    "session.timeout.ms": int(SESSION_SECONDS * 1000),
                    "heartbeat.interval.ms": int(SESSION_SECONDS * 1000 / 15),
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "error_cb": self._note_error,
                    "on_commit": self._note_commit,
                }
            )
        return self._consumer

    def _note_error(self, error: KafkaError) -> None:
        self._is_down = self._is_down or error.code() == KafkaError._ALL_BROKERS_DOWN

    def _check_topic(self) -> None:
        self._partitions(self._open())

    def _partitions(self, consumer: Consumer) -> list[int]:
        """The partitions of the topic. Raises ConfigurationError if it does not exist."""
        topic = consumer.list_topics(self._address.name, timeout=CALL_SECONDS).topics[self._address.name]
        if topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ConfigurationError(f"{self._where}: the topic {self._address.name} does not exist")
        if topic.error is not None:
            raise KafkaException(topic.error)
        return list(topic.partitions)

    def _receive(self, seconds: float) -> list[Message]:
        consumer = self._open()
        if not self._is_subscribed:  # not at the start: a process that only publishes does not join the group
            consumer.subscribe([self._address.name], on_revoke=self._revoke, on_lost=self._lose)
            self._is_subscribed = True
        if self._is_down:
            self._check_topic()
            self._is_down = False
        early, self._early = self._early, []
        consumer.resume(consumer.assignment())
        first = None if early else consumer.poll(seconds)
        records = [*early, *([first] if first else []), *consumer.consume(self.batch, timeout=0)]
        for record in records:
            if record.error() is not None:
                self._note_failure(record)
        messages = [_message(record) for record in records if record.error() is None]
        for message in messages:
            self._offsets.deliver(*message.handle)
        return messages

    def _note_failure(self, record: Record) -> None:
        error = record.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
            raise KafkaException(error)

    def _keep_alive(self) -> None:
        """Stay in the group while messages are held."""
        consumer = self._open()
        consumer.pause(consumer.assignment())
        while record := consumer.poll(0):
            if record.error() is None:
                self._early.append(record)

    def _finish(self, handles: Sequence[tuple[int, int]]) -> None:
        for partition, offset in handles:
            self._offsets.finish(partition, offset)
        self._commit(self._open(), self._offsets.take_commits())

    def _commit(self, consumer: Consumer, commits: dict[int, int]) -> None:
        """Send offsets without waiting: a cluster that does not respond would block the thread for a minute."""
        if not commits:
            return
        positions = [TopicPartition(self._address.name, number, offset) for number, offset in commits.items()]
        try:
            consumer.commit(offsets=positions, asynchronous=True)
        except KafkaException:
            self._offsets.restore_commits(commits)
            raise

    def _note_commit(self, error: KafkaError | None, positions: list[TopicPartition]) -> None:
        """Add the offsets of a failed commit to the next one. The library calls this when the cluster has answered."""
        failed = [position for position in positions if error is not None or position.error is not None]
        self._offsets.restore_commits({position.partition: position.offset for position in failed})

    def _rewind(self, handles: Sequence[tuple[int, int]]) -> None:
        """Continue at the first of these messages, in each of their partitions."""
        first: dict[int, int] = {}
        for partition, offset in handles:
            first[partition] = min(offset, first.get(partition, offset))
        for partition, offset in first.items():
            if self._offsets.rewind(partition, offset):
                self._early = [record for record in self._early if record.partition() != partition]
                self._open().seek(TopicPartition(self._address.name, partition, offset))

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what is claimed, before other consumers get the partitions."""
        numbers = [partition.partition for partition in partitions]
        try:
            self._commit(consumer, self._offsets.take_commits(numbers))
        except KafkaException:
            pass  # the other consumer gets claimed messages again: they are duplicates
        self._lose(consumer, partitions)

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions that other consumers may already have."""
        numbers = {partition.partition for partition in partitions}
        self._offsets.forget(numbers)
        self._early = [record for record in self._early if record.partition() not in numbers]

    def _count_waiting(self) -> int:
        """Count with another consumer, which does not join the group: a long poll would delay its requests."""
        consumer = Consumer({**client_settings(self._address), "group.id": self._group, "enable.auto.commit": False})
        try:
            partitions = [TopicPartition(self._address.name, number) for number in self._partitions(consumer)]
            waiting = 0
            for committed in consumer.committed(partitions, timeout=CALL_SECONDS):
                low, high = consumer.get_watermark_offsets(committed, timeout=CALL_SECONDS)
                waiting += high - max(low, committed.offset)
        finally:
            consumer.close()
        return waiting

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._is_subscribed = None, False


def _message(record: Record) -> Message:
    """A message of Kafka. Its id has its time, so that a new topic of the same name gives no id a second time."""
    partition, offset = record.partition() or 0, record.offset() or 0
    milliseconds = record.timestamp()[1]
    headers: Any = record.headers() or []
    return Message(
        id=f"{record.topic()}:{partition}:{offset}:{milliseconds}",
        body=bytes(record.value() or b""),
        headers=tuple(header_pairs({name: (value or b"").decode("latin-1") for name, value in headers})),
        sent_at=milliseconds / 1000 if milliseconds > 0 else time.time(),
        receives=1,
        handle=(partition, offset),
    )
