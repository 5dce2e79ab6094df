"""The same for tests that are plain functions: an inbox at work in a thread with a loop of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from oncehook.inbox import Inbox
from oncehook.model.receipt import Receipt
from oncehook.operations.prune import Pruned
from oncehook.testing import clock, deliveries, steps
from oncehook.testing.deliveries import DeliveryResponse
from oncehook.testing.steps import Drained

T = TypeVar("T")


class Bench:
    """A running inbox, to be used as a context manager. Each verb is the one of `oncehook.testing`, waited for."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oncehook-bench", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.inbox.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.run(self.inbox.stop())
        finally:
            self._end()

    def _end(self) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine in the inbox's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def deliver(self, to: str, payload: Any = None, **options: Any) -> DeliveryResponse:
        return self.run(deliveries.deliver(self.inbox, to, payload, **options))

    def drain(self, **options: Any) -> Drained:
        return self.run(steps.drain(self.inbox, **options))

    def perform(self) -> int:
        return self.run(steps.perform(self.inbox))

    def advance(self, by: Any) -> None:
        self.run(clock.advance(self.inbox, by))

    def crash(self, **options: Any) -> list[Receipt]:
        return self.run(steps.crash(self.inbox, **options))

    def receipt(self, which: int | DeliveryResponse) -> Receipt:
        return self.run(steps.receipt(self.inbox, which))

    def replay(self, *which: int | DeliveryResponse) -> int:
        return self.run(steps.replay(self.inbox, *which))

    def prune(self) -> Pruned:
        return self.run(steps.prune(self.inbox))
