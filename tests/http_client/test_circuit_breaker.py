"""The circuit breaker of a target: when it opens, probes and closes, and its slots."""

import asyncio
import random

import pytest

from oncehook.concurrency.clock import Clock
from oncehook.http_client import circuit_breaker
from oncehook.http_client.circuit_breaker import FAILURES, FIRST_PAUSE, MAX_PAUSE, CircuitBreaker
from oncehook.model.retry import Postpone

pytestmark = pytest.mark.anyio


class MovableClock(Clock):
    """A clock that the test moves."""

    at = 1000.0

    def monotonic(self) -> float:
        return self.at


async def fail(breaker: CircuitBreaker, times: int = 1, wait: float | None = None) -> None:
    for _ in range(times):
        async with breaker.call() as call:
            call.failed(wait=wait)


async def postponed_for(breaker: CircuitBreaker) -> float:
    """The seconds after which a caller may try again. Fails the test if the breaker lets the call through."""
    with pytest.raises(Postpone) as caught:
        async with breaker.call():
            pass
    return caught.value.after


async def test_breaker_opens_after_consecutive_failures() -> None:
    breaker = CircuitBreaker("http://x", 2, MovableClock())
    await fail(breaker, FAILURES - 1)
    assert breaker.state == "closed"
    await fail(breaker)
    assert breaker.state == "open" and await postponed_for(breaker) >= FIRST_PAUSE


async def test_success_resets_the_count_of_failures() -> None:
    breaker = CircuitBreaker("http://x", 2, MovableClock())
    await fail(breaker, FAILURES - 1)
    async with breaker.call() as call:
        call.succeeded()
    await fail(breaker, FAILURES - 1)
    assert breaker.state == "closed"


async def test_one_probe_runs_at_a_time_and_a_failed_probe_doubles_the_pause() -> None:
    clock = MovableClock()
    breaker = CircuitBreaker("http://x", 2, clock)
    await fail(breaker, FAILURES)
    for pause in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
        clock.at += pause - 0.01
        assert breaker.state == "open"
        clock.at += 0.02
        async with breaker.call() as probe:
            assert breaker.state == "half-open" and await postponed_for(breaker) <= 5
            probe.failed()


async def test_pause_is_never_longer_than_its_limit() -> None:
    clock = MovableClock()
    breaker = CircuitBreaker("http://x", 1, clock)
    await fail(breaker, FAILURES)
    for _ in range(20):
        clock.at += MAX_PAUSE
        await fail(breaker)
    assert MAX_PAUSE <= await postponed_for(breaker) <= 1 + 1.5 * MAX_PAUSE


async def test_probe_that_is_cancelled_leaves_the_probe_to_another_call() -> None:
    clock = MovableClock()
    breaker = CircuitBreaker("http://x", 2, clock)
    await fail(breaker, FAILURES)
    clock.at += FIRST_PAUSE
    with pytest.raises(asyncio.CancelledError):
        async with breaker.call():
            raise asyncio.CancelledError
    async with breaker.call() as probe:
        probe.succeeded()
    assert (breaker.state, breaker.failures) == ("closed", 0)


async def test_call_that_began_before_the_breaker_opened_does_not_close_it() -> None:
    breaker = CircuitBreaker("http://x", FAILURES + 1, MovableClock())
    async with breaker.call() as early:
        await fail(breaker, FAILURES)
        early.succeeded()
        assert breaker.state == "open"


async def test_target_that_asks_for_a_pause_opens_the_breaker_at_once() -> None:
    clock = MovableClock()
    breaker = CircuitBreaker("http://x", 2, clock)
    await fail(breaker, wait=7.0)
    assert breaker.state == "open"
    clock.at += 7.0
    assert breaker.state == "half-open"
    await fail(breaker, wait=10 * MAX_PAUSE)
    clock.at += MAX_PAUSE
    assert breaker.state == "half-open", "a requested pause is limited too"


async def test_failure_or_probe_that_opens_the_breaker_keeps_the_pause_that_the_target_asked_for() -> None:
    clock = MovableClock()
    breaker = CircuitBreaker("http://x", 2, clock)
    await fail(breaker, FAILURES - 1)
    await fail(breaker, wait=120.0)
    assert await postponed_for(breaker) >= 120.0
    clock.at += 120.0
    await fail(breaker, wait=200.0)
    assert await postponed_for(breaker) >= 200.0, "the probe failed with another wait"


async def test_caller_without_a_slot_is_postponed_after_a_short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PATIENCE", 0.01)
    breaker = CircuitBreaker("http://x", 1)
    async with breaker.call():
        assert 1 <= await postponed_for(breaker) <= 3
    async with breaker.call() as call:
        call.succeeded()


async def test_breaker_with_a_caller_or_a_failure_is_not_idle() -> None:
    breaker = CircuitBreaker("http://x", 1, MovableClock())
    states = [breaker.is_idle]
    async with breaker.call() as call:
        states.append(breaker.is_idle)
        call.failed()
    states.append(breaker.is_idle)
    async with breaker.call() as call:
        call.succeeded()
    states.append(breaker.is_idle)
    assert states == [True, False, False, True]


async def test_callers_of_an_open_breaker_are_spread_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "_jitter", random.Random(7).uniform)
    breaker = CircuitBreaker("http://x", 1, MovableClock())
    await fail(breaker, FAILURES)
    assert len({await postponed_for(breaker) for _ in range(10)}) == 10
