"""Sends items to a queue in the background, up to ten in one call.

The first item is sent immediately; items that arrive during that call share the next one. Items that the queue did not
take are sent again a few times. Nothing depends on the success: a message that was not sent is sent by the sweep, and
one that was not deleted is delivered again and changes nothing.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from oncehook.brokers.sqs import BATCH
from oncehook.model.errors import BrokerUnavailable
from oncehook.observability import signals
from oncehook.worker.queue.health import QueueHealth

T = TypeVar("T")

LIMIT = 10_000
"""How many items may wait. Further ones are dropped."""

TRIES = 4
"""How often one item is sent."""

PARALLEL = 4
"""How many calls run at the same time."""

FIRST_PAUSE = 0.1
"""Seconds before the second try of an item. The pause doubles with each try."""


class Batcher(Generic[T]):
    """Sends items in batches. `send` returns the items that were not taken."""

    def __init__(self, send: Callable[[Sequence[T]], Awaitable[list[T]]], health: QueueHealth) -> None:
        self._send = send
        self._health = health
        self._waiting: deque[tuple[T, int]] = deque()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, item: T) -> bool:
        """Send an item soon. Returns False if too many wait."""
        if len(self._waiting) >= LIMIT:
            return False
        self._waiting.append((item, 1))
        if not self._running or (self._running < PARALLEL and len(self._waiting) >= BATCH):
            self._running += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    async def flush(self, seconds: float) -> None:
        """Wait until all items are sent or dropped, for at most `seconds`, and drop those that still wait."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self._waiting.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        """Send batches until no item waits. No `await` may follow the last check: an item would wait unnoticed."""
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                failed = await self._try([item for item, _ in batch])
                again = [(item, tries + 1) for item, tries in batch if item in failed and tries < TRIES]
                if again:
                    await asyncio.sleep(FIRST_PAUSE * 2.0 ** (again[0][1] - 2))
                    self._waiting.extendleft(reversed(again))
        finally:
            self._running -= 1

    async def _try(self, items: Sequence[T]) -> Sequence[T]:
        try:
            failed = await self._send(items)
        except BrokerUnavailable as error:
            self._health.failed(error)
            return items
        except Exception as error:  # a bug in Oncehook must not end the task
            signals.log_background_failure("queue", error)
            return ()
        self._health.succeeded()
        return failed
