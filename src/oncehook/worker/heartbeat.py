"""Extends leases from a dedicated thread and connection, so that a blocked event loop does not lose them.

A lease is extended only until the handler's timeout. After that, the lease of a hanging handler expires and another
worker takes the receipt. Receipts that are leased but not started are released when the event loop is blocked for
STALLED seconds: they would wait for the handler that blocks the loop, which may never return.
"""

import asyncio
import math
import threading

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import LeaseKey
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.transaction import HeartbeatConnection

STALLED = 5.0
"""The event loop counts as blocked if it runs no callback for this many seconds."""

JOIN_SECONDS = 2.0
"""Seconds that `stop` waits for a running extension. A database that does not respond takes longer."""


class Heartbeat:
    """Extends the leases that this process holds, every third of a lease."""

    def __init__(self, connection: HeartbeatConnection, lease_seconds: float, clock: Clock = SYSTEM) -> None:
        self.connection = connection
        self.lease_seconds = lease_seconds
        self.clock = clock
        self.stalled = STALLED
        self._held: dict[LeaseKey, float | None] = {}  # → when the extensions end; None: not started, no end yet
        self._released: set[LeaseKey] = set()  # released here, while the loop was blocked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beats = 0
        self._missed_callbacks = 0  # consecutive callbacks that the loop has not run
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncehook-heartbeat", daemon=True)

    def start(self) -> None:
        """Start to extend leases. If called in an event loop, also detect when that loop is blocked."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            pass
        self._thread.start()

    def hold(self, key: LeaseKey, seconds: float | None = None) -> bool:
        """Extend a lease from now on, for at most `seconds`. Returns False if the lease was released."""
        with self._lock:
            if key in self._released:
                return False
            self._held[key] = None if seconds is None else self.clock.monotonic() + seconds
            return True

    def drop(self, key: LeaseKey) -> None:
        """Stop extending a lease."""
        with self._lock:
            self._held.pop(key, None)
            self._released.discard(key)

    @property
    def receipts(self) -> list[int]:
        """The receipts whose leases this process holds."""
        with self._lock:
            return [receipt for receipt, _ in self._held]

    def is_released(self, key: LeaseKey) -> bool:
        """Whether the lease was released while the loop was blocked. Another worker may have the receipt."""
        return key in self._released

    def _extendable(self) -> list[LeaseKey]:
        now = self.clock.monotonic()
        with self._lock:
            return [key for key, until in self._held.items() if until is None or until > now]

    def _run(self) -> None:
        while not self._stop.wait(self.step):
            self.beat()
        self.connection.close()

    @property
    def step(self) -> float:
        """Seconds between two beats."""
        return min(self.lease_seconds / 3, self.stalled / 5)

    def beat(self) -> None:
        """Check whether the loop is blocked, and extend the leases if a third of a lease has passed."""
        self._beats += 1
        self._watch_loop(max_missed=round(self.stalled / self.step))
        keys = self._extendable() if self._beats % math.ceil(self.lease_seconds / 3 / self.step) == 0 else []
        if not keys:
            return
        try:
            self.connection.extend(keys, self.lease_seconds)
            reach(Checkpoint.LEASES_RENEWED)
        except StoreUnavailable as error:
            signals.emit("heartbeat_failed", leases=len(keys), detail=error.detail)
        except Exception as error:  # a bug here must not end the thread that all leases depend on
            signals.emit("heartbeat_failed", leases=len(keys), detail=type(error).__name__)

    def _watch_loop(self, max_missed: int) -> None:
        """Release unstarted receipts if the loop is blocked.

        Missed callbacks are counted instead of time: a process that was suspended has not blocked its loop.
        """
        if self._loop is None:
            return
        if self._missed_callbacks >= max_missed:
            self._release_unstarted()
        self._missed_callbacks += 1
        try:
            self._loop.call_soon_threadsafe(self._reset_missed_callbacks)
        except RuntimeError:
            self._loop = None  # the loop is closed

    def _reset_missed_callbacks(self) -> None:
        self._missed_callbacks = 0

    def _release_unstarted(self) -> None:
        with self._lock:
            unstarted = [key for key, until in self._held.items() if until is None]
            for key in unstarted:
                del self._held[key]
            self._released.update(unstarted)
        if unstarted:
            signals.emit("event_loop_blocked", released=len(unstarted))
            try:
                self.connection.release(unstarted)
            except Exception as error:  # their leases expire
                signals.emit("release_failed", count=len(unstarted), detail=type(error).__name__)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(JOIN_SECONDS)
