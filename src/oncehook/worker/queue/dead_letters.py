"""Makes dead letters of receipts whose messages SQS has moved to the queue's dead-letter queue.

SQS moves a message that was received more often than `maxReceiveCount`. The message stays there: the watch only reads
it, which hides it from other readers for LOOK seconds.
"""

from oncehook.brokers.sqs import QueueAttributes, SqsQueue
from oncehook.observability import signals
from oncehook.store.protocols import QueueStore
from oncehook.store.rows import GivenUp
from oncehook.worker.queue.message import parse

LOOK = 30.0
"""For how many seconds a message that the watch has read is hidden, so that the next read returns others."""

MAX_READS = 100
"""How many times the watch reads up to ten messages in one pass."""


class DeadLetterWatch:
    """Reads the dead-letter queue when its length has changed."""

    def __init__(self, store: QueueStore, queue: SqsQueue) -> None:
        self._store = store
        self._queue = queue
        self._dead_letters: tuple[str, SqsQueue] | None = None  # by ARN
        self._length = 0
        self._checks = 0

    async def check(self, attributes: QueueAttributes) -> None:
        """Fail the receipts of the messages in the dead-letter queue that still wait. Raises BrokerUnavailable."""
        arn = attributes.dead_letter_arn
        if arn is None:
            return
        if self._dead_letters is None or self._dead_letters[0] != arn:
            self._dead_letters = arn, await self._queue.dead_letter_queue(arn)
        dead_letters = self._dead_letters[1]
        length = (await dead_letters.attributes()).total
        self._checks += 1
        if length == 0 or (length == self._length and self._checks % 10):
            self._length = length
            return
        for _ in range(MAX_READS):
            if not await self._read(dead_letters, attributes.max_receives):
                break
        self._length = length

    async def _read(self, dead_letters: SqsQueue, max_receives: int | None) -> bool:
        received = await dead_letters.receive(LOOK, wait=0)
        messages = [message for message in map(parse, received) if message is not None]
        if messages:
            reason = f"SQS moved its message to the dead-letter queue after {max_receives} receives"
            given = {GivenUp(each.receipt, each.replays, each.source, each.event_id) for each in messages}
            for row in await self._store.fail(sorted(given), reason):
                signals.record_dead_lettered_event(row)
        return bool(received)
