"""What an intake needs of a broker: durable publishing, messages that stay until they are acked, and their counts.

`sqs.py`, `nats.py` and `kafka.py` implement `Broker`. `tests/intake/test_broker.py` is one suite for all of them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class Message(msgspec.Struct, frozen=True):
    """A message as the broker delivers it. It may be delivered again, and in any order, until it is acked."""

    id: str  # the broker's id: a redelivery of the same message has the same one
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]  # header names in lower case; attributes of SQS, headers of NATS and Kafka
    sent_at: float  # Unix seconds, by the clock of the broker
    receives: int  # how often the broker has delivered it, with this time, as far as the broker counts
    handle: Any = None  # the broker's own reference: a receipt handle, a position


class QueueStatus(msgspec.Struct, frozen=True):
    """The counts of a queue. A count is None if the broker does not report it."""

    waiting: int  # messages that no consumer has received
    in_flight: int | None = None  # messages that consumers have received and not acked
    oldest_seconds: float | None = None  # the age of the oldest message
    dead: int | None = None  # messages in the dead-letter queue
    consumers: int | None = None  # connected consumers, of all processes


class Broker(Protocol):
    """One queue of a broker. Every method raises BrokerUnavailable if the broker does not respond in time."""

    name: str
    """The queue as a person knows it, such as `sqs:orders`: for logs and `origin`. It contains no credentials."""

    max_message: int
    """The largest message in bytes that `publish` can send."""

    parallel: int
    """How many loops of one process may receive at the same time. All but one stop when the queue is short."""

    batch: int
    """How many messages one `receive` may return."""

    extend_every: float
    """Seconds between two calls of `extend`. `start` sets it: a third of the time until the broker delivers again."""

    async def start(self) -> None:
        """Connect, and check the queue. Raises ConfigurationError if the address or the queue cannot work.

        Raises BrokerUnavailable if the broker does not respond. The inbox starts anyway: every later call connects.
        """

    async def stop(self) -> None:
        """Disconnect. Messages that are not acked are delivered again. A broker that was not started does nothing."""

    async def publish(self, body: bytes, message_id: str) -> None:
        """Send a message, and return when the broker has stored it durably.

        The broker may use `message_id` to drop a repeated publish. If the reply is lost, the message may be there.
        """

    async def receive(self, *, wait: bool = True) -> list[Message]:
        """Return up to `batch` messages. With `wait`, wait for a few seconds if there are none. May return none."""

    async def ack(self, messages: Sequence[Message]) -> None:
        """Remove messages from the queue: their events are committed. If it fails, they are delivered again."""

    async def extend(self, messages: Sequence[Message]) -> None:
        """Keep the broker from delivering messages again that the consumer still holds."""

    async def release(self, messages: Sequence[Message]) -> None:
        """Return messages to the queue, because this consumer cannot claim them now. They are delivered again soon."""

    async def reject(self, message: Message, reason: str) -> None:
        """Set a message aside that can never be claimed, without losing it. Other messages must not wait for it.

        The message goes to the queue's dead letters, or stays where an operator finds it. If this fails, the consumer
        releases the message.
        """

    async def status(self) -> QueueStatus:
        """Count the messages of the queue."""
