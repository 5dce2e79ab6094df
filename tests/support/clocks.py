"""A clock that stands still until a test moves it."""

from oncehook.concurrency.clock import Clock


class ManualClock(Clock):
    """Shows the same time to every reader. `advance` moves it."""

    def __init__(self, at: float = 1_000.0) -> None:
        self.at = at

    def advance(self, seconds: float) -> None:
        self.at += seconds

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at
