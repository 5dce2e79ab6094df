"""The clock: the one reader of the system time."""

import time
from datetime import UTC, datetime

from oncehook.concurrency.clock import SYSTEM, Clock
from tests.support.clocks import ManualClock


def test_the_system_clock_shows_the_time_of_this_machine() -> None:
    before = time.time()
    assert before <= SYSTEM.now() <= time.time()
    assert abs(SYSTEM.datetime().timestamp() - before) < 60


def test_the_monotonic_clock_never_goes_backwards() -> None:
    readings = [SYSTEM.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_datetime_is_the_same_instant_as_now_in_utc() -> None:
    clock = ManualClock(at=1_763_200_000.5)
    assert clock.datetime() == datetime.fromtimestamp(1_763_200_000.5, UTC)
    assert clock.datetime().tzinfo is UTC


def test_a_subclass_that_overrides_now_also_moves_the_datetime() -> None:
    class Epoch(Clock):
        def now(self) -> float:
            return 0.0

    assert Epoch().datetime() == datetime(1970, 1, 1, tzinfo=UTC)
