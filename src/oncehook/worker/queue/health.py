"""Whether the queue responds. While it does not, workers lease from the database."""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import BrokerUnavailable
from oncehook.observability import signals

PATIENCE = 5.0
"""For how many seconds every call must have failed before workers lease from the database."""


class QueueHealth:
    """The outcome of the calls to the queue, logged when it changes."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.failing_since: float | None = None

    def failed(self, error: BrokerUnavailable) -> None:
        if self.failing_since is None:
            self.failing_since = self.clock.monotonic()
            signals.emit("queue_unavailable", detail=error.detail)

    def succeeded(self) -> None:
        if self.failing_since is not None:
            self.failing_since = None
            signals.emit("queue_available")

    @property
    def is_down(self) -> bool:
        return self.failing_since is not None and self.clock.monotonic() - self.failing_since >= PATIENCE
