"""How a target is treated: so many calls at once, and a pause after failures in a row (a circuit breaker).

After FAILURES in a row it is paused; then one call is let through as a probe, and its success ends the pause, its
failure begins a longer one. Whoever comes meanwhile gets Postpone, so its receipt goes back and no attempt is used. It
holds for one process.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.retry import Postpone, Uniform
from oncehook.observability import signals

FAILURES = 5
FIRST_PAUSE = 10.0
MOST_PAUSE = 300.0
PATIENCE = 1.0
"""Seconds to wait for a place. Longer, and one slow target would hold every place of a worker."""

_spread: Uniform = random.uniform  # those that were put back together must not come back together


class Target:
    """Somebody who is called, by the name that may be told."""

    def __init__(self, name: str, places: int, clock: Clock = SYSTEM) -> None:
        self.name = name
        self.clock = clock
        self.failures = 0  # in a row
        self._places = places
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._paused_until: float | None = None
        self._pauses = 0  # in a row
        self._probing = False
        self._callers = 0  # under way, or waiting for a place

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to remember of it."""
        return not self._callers and not self.failures and self._paused_until is None

    @property
    def state(self) -> str:
        """`calling`, `paused`, or `probing`: one call decides."""
        if self._paused_until is None:
            return "calling"
        return "probing" if self._probing or self.clock.monotonic() >= self._paused_until else "paused"

    @asynccontextmanager
    async def call(self) -> AsyncIterator["Call"]:
        """A place to call it from, or Postpone. What came of the call is told by `succeeded` or `failed`."""
        self._check()
        self._callers += 1
        try:
            turns = await self._take_turn()
            call = Call(self)
            try:
                self._check()  # it may have been paused meanwhile
                call.is_probe = self._probing = self._paused_until is not None
                yield call
            finally:
                turns.release()
                if call.is_probe:
                    self._probing = False
        finally:
            self._callers -= 1

    def _check(self) -> None:
        if self._paused_until is None:
            return
        left = self._paused_until - self.clock.monotonic()
        if left > 0:
            raise Postpone(f"{self.name} is paused after failures", after=left + _spread(0, 1 + left / 2))
        if self._probing:
            raise Postpone(f"{self.name} is being probed after failures", after=_spread(1, 5))

    async def _take_turn(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not loop:  # an inbox may be started again in another loop
            self._turns = loop, asyncio.Semaphore(self._places)
        turns = self._turns[1]
        try:
            async with asyncio.timeout(PATIENCE):
                await turns.acquire()
        except TimeoutError:
            raise Postpone(f"{self.name} has no place free", after=_spread(1, 3)) from None
        return turns

    def pause(self, seconds: float) -> None:
        self._pauses += 1
        self._paused_until = self.clock.monotonic() + seconds
        signals.emit("circuit_opened", target=self.name, seconds=round(seconds, 3), failures=self.failures)

    def resume(self) -> None:
        self._paused_until = None
        self._pauses = 0
        signals.emit("circuit_closed", target=self.name)

    @property
    def next_pause(self) -> float:
        return min(MOST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._pauses, 16))

    @property
    def is_paused(self) -> bool:
        return self._paused_until is not None


class Call:
    """One call of a target. The probe alone ends a pause or makes it longer: others were under way before it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.is_probe = False

    def succeeded(self) -> None:
        """The target is well, whatever it thinks of this request."""
        self.target.failures = 0
        if self.is_probe:
            self.target.resume()

    def failed(self, *, wait: float | None = None) -> None:
        """The target is not well, or asks to be left alone for `wait` seconds."""
        target = self.target
        target.failures += 1
        if self.is_probe or (not target.is_paused and target.failures >= FAILURES):
            target.pause(max(target.next_pause, min(wait or 0.0, MOST_PAUSE)))
        elif wait is not None and not target.is_paused:
            target.pause(min(wait, MOST_PAUSE))
