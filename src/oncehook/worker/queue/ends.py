"""Ends the deliveries of messages: deletes them, or lets the queue deliver them again."""

import asyncio

from oncehook.brokers.sqs import QueueAttributes, Received, SqsQueue
from oncehook.worker.queue.batcher import Batcher
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.message import QueueMessage

FLUSH_SECONDS = 3.0
"""How long a stop waits for the queue."""


class MessageEnds:
    """Ends deliveries in the background. If that fails, the queue delivers the message again after its visibility."""

    def __init__(self, queue: SqsQueue, health: QueueHealth) -> None:
        self.attributes: QueueAttributes | None = None  # as the queue last reported them
        self._deletes: Batcher[Received] = Batcher(queue.delete, health)
        self._changes: Batcher[tuple[Received, float]] = Batcher(queue.change_visibility, health)

    def delete(self, message: QueueMessage | Received) -> None:
        self._deletes.add(message if isinstance(message, Received) else message.received)

    def return_after(self, message: QueueMessage, seconds: float) -> None:
        """Let the queue deliver the message again after `seconds`."""
        self._changes.add((message.received, seconds))

    def dead_letter(self, message: QueueMessage) -> None:
        """Let the queue move the message to its dead-letter queue, if it has one. Else delete it.

        The queue moves a message when it would be received more often than `maxReceiveCount`.
        """
        if self.attributes is None or self.attributes.dead_letter_arn is None:
            self.delete(message)
        else:
            self.return_after(message, 0.0)

    async def flush(self) -> None:
        await asyncio.gather(self._deletes.flush(FLUSH_SECONDS), self._changes.flush(FLUSH_SECONDS))
