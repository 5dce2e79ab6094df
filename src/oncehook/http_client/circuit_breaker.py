"""Limits the calls to one target: a number of slots, and a circuit breaker that opens after consecutive failures.

After FAILURES consecutive failures the breaker opens. When its pause ends, it is half open: one call goes through as a
probe. A probe that succeeds closes the breaker, and one that fails opens it for longer. A caller that finds the breaker
open gets Postpone, so its receipt is released without using an attempt. Each process has its own breakers.
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
MAX_PAUSE = 300.0
PATIENCE = 1.0
"""Seconds that a caller waits for a slot. With a longer wait, one slow target could occupy every slot of a worker."""

_jitter: Uniform = random.uniform  # receipts that were released together must not all become due together


class CircuitBreaker:
    """The breaker and the slots of one target. `name` appears in messages and logs, so it holds no secret."""

    def __init__(self, name: str, slots: int, clock: Clock = SYSTEM) -> None:
        self.name = name
        self.clock = clock
        self.failures = 0  # consecutive
        self._slot_count = slots
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._open_until: float | None = None
        self._times_opened = 0  # since it was last closed
        self._probing = False
        self._callers = 0  # in a call, or waiting for a slot

    @property
    def is_idle(self) -> bool:
        """Whether it can be discarded: it has no caller and no failure to remember."""
        return not self._callers and not self.failures and self._open_until is None

    @property
    def state(self) -> str:
        """`closed`, `open`, or `half-open`: a probe is running or the next call is one."""
        if self._open_until is None:
            return "closed"
        return "half-open" if self._probing or self.clock.monotonic() >= self._open_until else "open"

    @asynccontextmanager
    async def call(self) -> AsyncIterator["Call"]:
        """Take a slot for one call, or raise Postpone. The caller reports its result with `succeeded` or `failed`."""
        self._check()
        self._callers += 1
        try:
            slots = await self._take_slot()
            call = Call(self)
            try:
                self._check()  # the breaker may have opened during the wait
                call.is_probe = self._probing = self._open_until is not None
                yield call
            finally:
                slots.release()
                if call.is_probe:
                    self._probing = False
        finally:
            self._callers -= 1

    def _check(self) -> None:
        if self._open_until is None:
            return
        remaining = self._open_until - self.clock.monotonic()
        if remaining > 0:
            raise Postpone(
                f"the circuit breaker of {self.name} is open", after=remaining + _jitter(0, 1 + remaining / 2)
            )
        if self._probing:
            raise Postpone(
                f"the circuit breaker of {self.name} is half open, and a probe is running", after=_jitter(1, 5)
            )

    async def _take_slot(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:  # an inbox may be started again in another loop
            self._slots = loop, asyncio.Semaphore(self._slot_count)
        slots = self._slots[1]
        try:
            async with asyncio.timeout(PATIENCE):
                await slots.acquire()
        except TimeoutError:
            raise Postpone(f"{self.name} has no free slot", after=_jitter(1, 3)) from None
        return slots

    def open(self, seconds: float) -> None:
        self._times_opened += 1
        self._open_until = self.clock.monotonic() + seconds
        signals.emit("circuit_opened", target=self.name, seconds=round(seconds, 3), failures=self.failures)

    def close(self) -> None:
        self._open_until = None
        self._times_opened = 0
        signals.emit("circuit_closed", target=self.name)

    @property
    def next_pause(self) -> float:
        return min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(self._times_opened, 16))

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open or half open."""
        return self._open_until is not None


class Call:
    """One call to a target. Only the probe closes an open breaker or extends its pause: other calls began earlier."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.is_probe = False

    def succeeded(self) -> None:
        """Record that the target answered and is healthy, even if it did not accept this request."""
        self.breaker.failures = 0
        if self.is_probe:
            self.breaker.close()

    def failed(self, *, wait: float | None = None) -> None:
        """Record that the target is unhealthy, or that it requests a pause of `wait` seconds."""
        breaker = self.breaker
        breaker.failures += 1
        if self.is_probe or (not breaker.is_open and breaker.failures >= FAILURES):
            breaker.open(max(breaker.next_pause, min(wait or 0.0, MAX_PAUSE)))
        elif wait is not None and not breaker.is_open:
            breaker.open(min(wait, MAX_PAUSE))
