"""Keeps leases alive from a thread and a connection of its own, so that a blocked event loop does not lose them.

A receipt is kept only until its handler's timeout: a handler that hangs keeps its worker's lease no longer than that,
and somebody else takes the receipt.
"""

import threading

from oncehook import signals
from oncehook.clock import SYSTEM, Clock
from oncehook.errors import StoreUnavailable
from oncehook.receipt import Held
from oncehook.transact import Heart


class Heartbeat:
    """Extends the leases that are held, three times in each lease."""

    def __init__(self, heart: Heart, lease_seconds: float, clock: Clock = SYSTEM) -> None:
        self.heart = heart
        self.lease_seconds = lease_seconds
        self.clock = clock
        self._held: dict[Held, float | None] = {}  # → until when it is kept; None: not started, kept until it is
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncehook-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def keep(self, held: Held, seconds: float | None = None) -> None:
        """Hold a lease, for at most so long once its handler has started."""
        with self._lock:
            self._held[held] = None if seconds is None else self.clock.monotonic() + seconds

    def drop(self, held: Held) -> None:
        with self._lock:
            self._held.pop(held, None)

    def _due(self) -> list[Held]:
        now = self.clock.monotonic()
        with self._lock:
            return [held for held, until in self._held.items() if until is None or until > now]

    def _run(self) -> None:
        while not self._stop.wait(self.lease_seconds / 3):
            held = self._due()
            if held:
                try:
                    self.heart.beat(held, self.lease_seconds)
                except StoreUnavailable as error:
                    signals.emit("heartbeat_failed", held=len(held), detail=error.detail)
                except Exception as error:  # the leases of every handler here hang on this thread
                    signals.emit("heartbeat_failed", held=len(held), detail=type(error).__name__)
        self.heart.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
