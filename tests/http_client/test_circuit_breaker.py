"""The circuit breaker of an origin: it opens after failures, and one probe at a time closes it."""

import asyncio

import pytest

from oncehook.concurrency.clock import Clock
from oncehook.http_client import circuit_breaker
from oncehook.model.retry import Postpone

pytestmark = pytest.mark.anyio


async def test_circuit_breaker_allows_one_probe_and_waits_longer_after_each_failed_probe() -> None:
    class ManualClock(Clock):
        at = 1000.0

        def monotonic(self) -> float:
            return self.at

    clock = ManualClock()
    breaker = circuit_breaker.CircuitBreaker("http://x", 2, clock)
    for _ in range(circuit_breaker.FAILURES):
        async with breaker.call() as call:
            call.failed()
    with pytest.raises(Postpone) as postponed:
        async with breaker.call():
            pass
    assert breaker.state == "open" and postponed.value.after >= circuit_breaker.FIRST_PAUSE
    for pause in (circuit_breaker.FIRST_PAUSE, 2 * circuit_breaker.FIRST_PAUSE, 4 * circuit_breaker.FIRST_PAUSE):
        clock.at += pause - 0.01
        assert breaker.state == "open"
        clock.at += 0.02
        async with breaker.call() as probe:
            with pytest.raises(Postpone):
                async with breaker.call():
                    pass
            assert breaker.state == "half-open"
            probe.failed()
    clock.at += circuit_breaker.MOST_PAUSE
    with pytest.raises(asyncio.CancelledError):
        async with breaker.call():
            raise asyncio.CancelledError  # a cancelled probe frees its slot for the next one
    async with breaker.call() as probe:
        probe.succeeded()
    assert (breaker.state, breaker.failures) == ("closed", 0)
    async with breaker.call() as call:
        call.failed()
    assert breaker.state == "closed"
