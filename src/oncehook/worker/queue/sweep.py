"""Sends receipts that are due and that no worker has leased, because their message was not sent or was lost.

One process sweeps for all. A sweep sends the receipts that have become overdue since the last one. Every tenth sweep,
and each one that finds the queue empty, sends all overdue receipts. A copy of a message is harmless: the lease of its
receipt decides.
"""

import asyncio

from oncehook.brokers.sqs import SqsQueue
from oncehook.model.errors import BrokerUnavailable, Unavailable
from oncehook.model.event import MAIN
from oncehook.observability import signals
from oncehook.store.store import Store
from oncehook.worker.queue.dead_letters import DeadLetterWatch
from oncehook.worker.queue.ends import MessageEnds
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.sender import QueueSender

LEADER, FULL_LEADER = "queue", "queue: all"
"""The names of the two elections in the database."""


class QueueSweep:
    """Sweeps every `lease / 3` seconds. A receipt is overdue if it was due for `lease` seconds."""

    def __init__(
        self,
        store: Store,
        queue: SqsQueue,
        sender: QueueSender,
        ends: MessageEnds,
        health: QueueHealth,
        *,
        lease: float,
    ) -> None:
        self._store = store
        self._queue = queue
        self._sender = sender
        self._ends = ends
        self._health = health
        self._lease = lease
        self._every = lease / 3
        self._dead_letters = DeadLetterWatch(store.queue, queue)

    async def keep_sweeping(self) -> None:
        """Sweep until cancelled, in the process that is elected."""
        while True:
            await asyncio.sleep(self._every / 2)
            try:
                if await self._store.leadership.take(LEADER, self._every) is not None:
                    await self.sweep()
            except BrokerUnavailable as error:
                self._health.failed(error)
            except Unavailable as error:
                signals.emit("worker_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("queue sweep", error)

    async def sweep(self) -> int:
        """Send overdue receipts, and return how many."""
        attributes = self._ends.attributes = await self._queue.attributes()
        await self._dead_letters.check(attributes)
        is_full = attributes.total == 0
        if await self._store.leadership.take(FULL_LEADER, 10 * self._lease) is not None:
            is_full = True
        most = None if is_full else self._lease + 1.5 * self._every  # sweeps overlap
        count = 0
        for consumer in sorted({MAIN, *(row.name for row in await self._store.consumers.all())}):
            for receipt in await self._store.queue.overdue(consumer, self._lease, most):
                self._sender.send(receipt)
                count += 1
        if count:
            signals.emit("queue_swept", count=count)
        return count
