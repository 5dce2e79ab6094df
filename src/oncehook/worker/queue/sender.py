"""Sends the receipts of committed events to the queue, off the path of the response.

If the process dies before a message is sent, or the queue does not respond, the sweep sends it later.
"""

import asyncio
from collections.abc import Sequence

from oncehook.brokers.sqs import SqsQueue
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import Unavailable
from oncehook.model.event import MAIN
from oncehook.model.rows import QueuedReceipt
from oncehook.model.states import State
from oncehook.observability import metrics, signals
from oncehook.store.protocols import QueueStore
from oncehook.worker.queue.batcher import Batcher
from oncehook.worker.queue.ends import FLUSH_SECONDS
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.message import encode

COPIES_LIMIT = 1000
"""How many events may wait until the receipts of their other consumers are looked up. The sweep sends the others."""


class QueueSender:
    """Sends each new receipt once, and a few times more if the queue does not take it."""

    def __init__(self, store: QueueStore, queue: SqsQueue, health: QueueHealth) -> None:
        self._store = store
        self._batcher = Batcher(queue.send, health)
        self._copied: list[int] = []  # receipts of `main` whose events have other consumers
        self._lookup: asyncio.Task[None] | None = None

    def offer(self, pairs: Sequence[tuple[Claim, Claimed]]) -> None:
        """Send the receipts of new events. Returns at once."""
        for claim, claimed in pairs:
            if not claimed.fresh:
                continue
            if claimed.status is State.RECEIVED and claim.inline_seconds is None:
                self.send(_queued(claim, claimed))
            if claim.copies and len(self._copied) < COPIES_LIMIT:
                self._copied.append(claimed.receipt)
        if self._copied and self._lookup is None:
            self._lookup = asyncio.create_task(self._send_copies())

    def send(self, receipt: QueuedReceipt) -> None:
        """Send a receipt. Returns at once."""
        if self._batcher.add(encode(receipt)):
            metrics.count("oncehook_queue_sent_total")

    async def stop(self) -> None:
        """Send what waits, for a few seconds at most."""
        if self._lookup is not None:
            await asyncio.wait([self._lookup], timeout=FLUSH_SECONDS)
        await self._batcher.flush(FLUSH_SECONDS)

    async def _send_copies(self) -> None:
        """Send the receipts of consumers other than `main`."""
        try:
            while self._copied:
                receipts, self._copied = self._copied, []
                for receipt in await self._store.copies(receipts):
                    self.send(receipt)
        except Unavailable:
            self._copied.clear()
        except Exception as error:  # a bug in Oncehook must not end the sender
            signals.log_background_failure("queue sender", error)
        finally:
            self._lookup = None


def _queued(claim: Claim, claimed: Claimed) -> QueuedReceipt:
    return QueuedReceipt(
        receipt=claimed.receipt,
        source=claim.source,
        event_id=claim.event_id,
        consumer=MAIN,
        replays=0,
        lease=0,
        serial_key=claim.serial_key,
        object_id=claim.object_id,
    )
