"""Token buckets of consumers on every store."""

import asyncio
import time

import pytest

from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.stores import open_store
from tests.support.waiting import let_time_pass

pytestmark = pytest.mark.anyio

SECONDS_AGO = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '{:+} seconds')",
    "postgresql": "now() + interval '{} seconds'",
}


@pytest.fixture
def refilled(database: str, rows: Rows) -> "Refilled":
    return Refilled(database, rows)


class Refilled:
    """Sets the time at which every bucket was last refilled, in seconds from now."""

    def __init__(self, database: str, rows: Rows) -> None:
        self.time = SECONDS_AGO[database.partition(":")[0]]
        self.rows = rows

    def __call__(self, seconds: float) -> None:
        self.rows(f"UPDATE webhook_rates SET refilled_at = {self.time.format(seconds)}")


async def take(store: Store, wanted: int, *, rate: float = 0.01, burst: float = 5.0, consumer: str = "mail") -> int:
    return (await store.rates.take(consumer, wanted, rate, burst)).granted


async def test_new_bucket_is_full_and_each_token_is_given_once(store: Store) -> None:
    assert [await take(store, 3), await take(store, 3), await take(store, 3)] == [3, 2, 0]
    assert await take(store, 3, consumer="ledger") == 3, "each consumer must have its own bucket"


async def test_bucket_fills_by_the_clock_of_the_database_up_to_its_burst(store: Store, refilled: Refilled) -> None:
    assert await take(store, 5, rate=1.0) == 5
    refilled(-2.5)
    assert await take(store, 5, rate=1.0) == 2
    refilled(-0.6)
    assert await take(store, 5, rate=1.0) == 1, "fractions of a token must not be lost"
    refilled(-3600)
    assert await take(store, 100, rate=1.0) == 5


async def test_wait_is_the_time_until_the_next_token(store: Store, refilled: Refilled) -> None:
    assert (await store.rates.take("mail", 5, 0.1, 5.0)).wait == pytest.approx(10, abs=0.5)
    refilled(-4)
    tokens = await store.rates.take("mail", 5, 0.1, 5.0)
    assert tokens.granted == 0 and tokens.wait == pytest.approx(6, abs=0.5)
    refilled(-4)
    assert (await store.rates.take("mail", 5, 0.1, 5.0)).granted == 0, "a take without a token must change nothing"


async def test_clock_that_was_set_back_blocks_nobody_and_adds_no_tokens(store: Store, refilled: Refilled) -> None:
    assert await take(store, 4, rate=0.1) == 4
    refilled(3600)  # the clock is an hour behind the last refill
    tokens = await store.rates.take("mail", 1, 0.1, 5.0)
    assert tokens.granted == 1
    refilled(3600)
    tokens = await store.rates.take("mail", 1, 0.1, 5.0)
    assert tokens.granted == 0 and tokens.wait == pytest.approx(10, abs=0.5)
    refilled(-10.5)
    assert await take(store, 1, rate=0.1) == 1


async def test_refunded_tokens_are_given_again_up_to_the_burst(store: Store) -> None:
    assert await take(store, 5) == 5
    await store.rates.refund("mail", 2, 5.0)
    assert await take(store, 5) == 2
    await store.rates.refund("mail", 100, 5.0)
    assert await take(store, 100) == 5
    await store.rates.refund("unknown", 1, 5.0)


async def test_rate_that_was_lowered_caps_the_bucket(store: Store) -> None:
    assert await take(store, 1, burst=50.0) == 1
    assert await take(store, 50, burst=2.0) == 2


async def test_concurrent_processes_share_one_bucket(database: str) -> None:
    async with open_store(database) as first, open_store(database) as second, open_store(database) as third:
        stores = [first, second, third] * 10
        granted = await asyncio.gather(*[take(store, 2, burst=25.0) for store in stores])
    assert sum(granted) == 25


async def test_bucket_that_was_removed_is_created_again(store: Store, rows: Rows) -> None:
    assert await take(store, 5) == 5
    rows("DELETE FROM webhook_rates")
    assert await take(store, 5) == 5


async def test_no_more_tokens_are_used_than_the_rate_and_the_burst_allow(database: str) -> None:
    """Each of three processes takes more tokens than it uses, and returns the others."""
    used, rate, burst, seconds = 0, 50.0, 6.0, 1.0

    async def use_tokens(store: Store) -> None:
        nonlocal used
        while time.monotonic() - began < seconds:
            tokens = await store.rates.take("mail", 3, rate, burst)
            used += min(tokens.granted, 1)
            await store.rates.refund("mail", tokens.granted - min(tokens.granted, 1), burst)
            await let_time_pass(min(tokens.wait, 0.02))

    async with open_store(database) as first, open_store(database) as second, open_store(database) as third:
        began = time.monotonic()
        await asyncio.gather(*map(use_tokens, (first, second, third)))
        allowed = burst + rate * (time.monotonic() - began)
    assert rate / 2 <= used <= allowed
