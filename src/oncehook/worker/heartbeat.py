"""Keeps leases alive from a thread and a connection of its own, so that a blocked event loop does not lose them.

A receipt is kept only until its handler's timeout: a handler that hangs keeps its worker's lease no longer than that,
and somebody else takes the receipt. Receipts that are leased and not started are released when the event loop has been
blocked for STALLED seconds: they would wait behind the handler that blocks it, for ever if it never returns.
"""

import asyncio
import math
import threading

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Held
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.store.transaction import HeartbeatConnection

STALLED = 5.0
"""Seconds without a turn of the event loop after which it counts as blocked."""

JOIN_SECONDS = 2.0
"""How long stopping waits for a beat that is under way: a database that does not answer takes longer."""


class Heartbeat:
    """Extends the leases that are held, three times in each lease."""

    def __init__(self, connection: HeartbeatConnection, lease_seconds: float, clock: Clock = SYSTEM) -> None:
        self.connection = connection
        self.lease_seconds = lease_seconds
        self.clock = clock
        self.stalled = STALLED
        self._held: dict[Held, float | None] = {}  # → until when it is kept; None: not started, kept until it is
        self._released: set[Held] = set()  # by us, while the loop was blocked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unanswered = 0  # how often in a row the loop was asked for a turn, and took none
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncehook-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to extend leases. Called in an event loop, it also watches whether that is blocked."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            pass
        self._thread.start()

    def keep(self, held: Held, seconds: float | None = None) -> bool:
        """Hold a lease, for at most so long once its handler has started. False if it was released meanwhile."""
        with self._lock:
            if held in self._released:
                return False
            self._held[held] = None if seconds is None else self.clock.monotonic() + seconds
            return True

    def drop(self, held: Held) -> None:
        with self._lock:
            self._held.pop(held, None)
            self._released.discard(held)

    @property
    def receipts(self) -> list[int]:
        """Those whose leases are held."""
        with self._lock:
            return [receipt for receipt, _ in self._held]

    def is_released(self, held: Held) -> bool:
        """Whether the lease was released because the loop was blocked: then somebody else has the receipt."""
        return held in self._released

    def _due(self) -> list[Held]:
        now = self.clock.monotonic()
        with self._lock:
            return [held for held, until in self._held.items() if until is None or until > now]

    def _run(self) -> None:
        step = min(self.lease_seconds / 3, self.stalled / 5)
        steps = math.ceil(self.lease_seconds / 3 / step)
        done = 0
        while not self._stop.wait(step):
            done += 1
            self._watch_loop(most=round(self.stalled / step))
            held = self._due() if done % steps == 0 else []
            if held:
                try:
                    self.connection.extend(held, self.lease_seconds)
                    reach(Checkpoint.LEASES_RENEWED)
                except StoreUnavailable as error:
                    signals.emit("heartbeat_failed", held=len(held), detail=error.detail)
                except Exception as error:  # the leases of every handler here hang on this thread
                    signals.emit("heartbeat_failed", held=len(held), detail=type(error).__name__)
        self.connection.close()

    def _watch_loop(self, most: int) -> None:
        """Steps are counted, not time: a process that was stopped and goes on has not blocked its loop."""
        if self._loop is None:
            return
        if self._unanswered >= most:
            self._release_waiting()
        self._unanswered += 1
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._loop = None  # it is closed

    def _answer(self) -> None:
        self._unanswered = 0

    def _release_waiting(self) -> None:
        with self._lock:
            waiting = [held for held, until in self._held.items() if until is None]
            for held in waiting:
                del self._held[held]
            self._released.update(waiting)
        if waiting:
            signals.emit("event_loop_blocked", released=len(waiting))
            try:
                self.connection.release(waiting)
            except Exception as error:  # their leases run out
                signals.emit("release_failed", count=len(waiting), detail=type(error).__name__)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(JOIN_SECONDS)
