"""The testing functions for synchronous tests: a running inbox in a thread with its own event loop."""

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
    """A running inbox for synchronous tests. Its methods call the functions of `oncehook.testing` and wait for them.

    with Bench(isolated(inbox, "sqlite:///test.db")) as bench:
        bench.deliver("stripe", type="invoice.paid")
        (receipt,) = bench.drain()
    """

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oncehook-bench", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.inbox.start())
        except BaseException:
            self._close_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.run(self.inbox.stop())
        finally:
            self._close_loop()

    def _close_loop(self) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the inbox's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def deliver(self, to: str, payload: Any = None, **options: Any) -> DeliveryResponse:
        """Deliver an event, as `oncehook.testing.deliver` does."""
        return self.run(deliveries.deliver(self.inbox, to, payload, **options))

    def drain(self, **options: Any) -> Drained:
        """Handle all due events, as `oncehook.testing.drain` does."""
        return self.run(steps.drain(self.inbox, **options))

    def perform(self) -> int:
        """Run the due effects, as `oncehook.testing.perform` does. Returns the number of calls."""
        return self.run(steps.perform(self.inbox))

    def advance(self, by: Any) -> None:
        """Let time pass for the inbox, as `oncehook.testing.advance` does."""
        self.run(clock.advance(self.inbox, by))

    def crash(self, **options: Any) -> list[Receipt]:
        """Lease the due events and never settle them, as `oncehook.testing.crash` does."""
        return self.run(steps.crash(self.inbox, **options))

    def receipt(self, which: int | DeliveryResponse) -> Receipt:
        """Return the current receipt of a delivery, as `oncehook.testing.receipt` does."""
        return self.run(steps.receipt(self.inbox, which))

    def replay(self, *which: int | DeliveryResponse) -> int:
        """Replay receipts, as `oncehook.testing.replay` does. Returns how many were queued."""
        return self.run(steps.replay(self.inbox, *which))

    def prune(self) -> Pruned:
        """Delete data that is past its retention, as `oncehook.testing.prune` does."""
        return self.run(steps.prune(self.inbox))
