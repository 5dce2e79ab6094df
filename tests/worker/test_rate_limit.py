"""The rate of a consumer in one process: when it queries the shared bucket, and how long it waits."""

import pytest

from oncehook.store.store import Store
from oncehook.worker.rate_limit import MIN_WAIT, RateLimit
from tests.support.clocks import ManualClock
from tests.support.events import Rows
from tests.support.stores import missing_table

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_burst_is_one_token_and_those_of_a_tenth_of_a_second(store: Store, clock: ManualClock) -> None:
    assert [RateLimit(store.rates, "mail", rate, clock).burst for rate in (100.0, 10.0, 0.1)] == [11, 2, 1.01]


async def test_empty_bucket_is_not_queried_before_its_next_token(store: Store, rows: Rows, clock: ManualClock) -> None:
    limit = RateLimit(store.rates, "mail", 10 / 60, clock)
    assert await limit.take(5) == 1
    assert limit.seconds_left() == pytest.approx(6, abs=0.5)
    with missing_table(rows, "webhook_rates"):
        assert await limit.take(5) == 0, "the bucket is known to be empty"
    clock.advance(6.5)
    assert limit.seconds_left() == 0
    assert await limit.take(5) == 0, "the clock of the database counts, not the clock of the process"
    assert limit.seconds_left() > 5


async def test_fast_rate_is_queried_at_most_every_few_milliseconds(store: Store, clock: ManualClock) -> None:
    limit = RateLimit(store.rates, "mail", 1000.0, clock)
    assert await limit.take(500) == 101
    assert limit.seconds_left() == pytest.approx(MIN_WAIT)
    assert limit.rate * MIN_WAIT < limit.burst, "the bucket must not overflow between two queries"


async def test_refunded_token_can_be_taken_at_once_by_any_process(store: Store, clock: ManualClock) -> None:
    limit = RateLimit(store.rates, "mail", 10 / 60, clock)
    other = RateLimit(store.rates, "mail", 10 / 60, clock)
    assert await limit.take(5) == 1 and await other.take(5) == 0
    await limit.refund(1)
    assert await limit.take(5) == 1
    await limit.refund(1)
    clock.advance(6.5)
    assert await other.take(1) == 1
    assert other.seconds_left() == 0, "it got all that it wanted"


async def test_refund_that_fails_loses_only_the_tokens(store: Store, rows: Rows, clock: ManualClock) -> None:
    limit = RateLimit(store.rates, "mail", 1.0, clock)
    assert await limit.take(1) == 1
    await store.close()
    await limit.refund(1)
    await store.open()
    assert await limit.take(0) == 0
