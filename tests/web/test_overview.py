"""The numbers of the overview: counts per bucket, across processes, and cached for a short time."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.concurrency.clock import Clock
from oncehook.testing import advance, deliver, drain
from oncehook.web.overview import RANGES, Overview
from tests.support.dashboard import both_databases, send
from tests.support.events import Rows, stripe_body

pytestmark = pytest.mark.anyio


class StoppedClock(Clock):
    """Cached values age only when a test says so."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


async def total_of(overview: Overview, series: str, range_: str = "1h") -> int:
    return sum((await overview.rates(range_))[1][series])


@both_databases
async def test_every_range_counts_received_duplicate_rejected_and_failed(shop: Inbox) -> None:
    for n in range(4):
        await send(shop, f"evt_{n}")
    await send(shop, "evt_0")
    await send(shop, "evt_f", "charge.failed")
    await deliver(shop, "stripe", stripe_body("evt_x"), secret="whsec_wrong")
    await shop._runtime.reception.duplicates.drain()
    await drain(shop)
    overview = Overview(shop._runtime)
    for name in RANGES:
        _, series = await overview.rates(name)
        assert {key: sum(counts) for key, counts in series.items()} == {
            "received": 5, "duplicate": 1, "rejected": 1, "failed": 1,
        }  # fmt: skip
    _, of_github = await overview.rates("1h", "github")
    assert sum(map(sum, of_github.values())) == 0
    total = await overview.total()
    assert (total["waiting"], total["dead_letters"], total["is_empty"]) == (0, 1, False)
    assert total["accept_seconds"]["p50"] <= total["accept_seconds"]["p95"] <= total["accept_seconds"]["p99"]


@both_databases
async def test_rejections_and_latencies_cover_all_processes(
    shop: Inbox, make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    other = make_inbox()
    other.source("stripe", secrets=["whsec_test"])
    async with other.lifespan():
        for inbox, rejected in ((shop, 5), (other, 7)):
            await deliver(inbox, "stripe", stripe_body(f"evt_{rejected}"))
            for _ in range(rejected):
                await deliver(inbox, "stripe", stripe_body("evt_x"), secret="whsec_wrong")
        await write_counts(other)
        unwritten = Overview(shop._runtime)
        assert await total_of(unwritten, "rejected") == 12, "counts that are not written yet must be included"
        assert (await unwritten.sources("1h"))[-1]["rejected"] == 12
        await write_counts(shop)
        latencies = []
        for overview in (Overview(shop._runtime), Overview(other._runtime)):
            assert await total_of(overview, "rejected") == await total_of(overview, "rejected", "15m") == 12
            latencies.append((await overview.total())["accept_seconds"])
        assert latencies[0] == latencies[1]
        assert rows("SELECT sum(acked) FROM webhook_acks") == [(2,)]
    assert await total_of(Overview(shop._runtime), "rejected", "7d") == 12, "counts must outlive their process"


async def write_counts(inbox: Inbox) -> None:
    await inbox._runtime.reception.rejection_counts.write()
    await inbox._runtime.reception.ack_latencies.write()


@both_databases
async def test_default_range_is_15_minutes_until_there_is_an_hour_of_events(shop: Inbox) -> None:
    await send(shop, "evt_1")
    overview = Overview(shop._runtime)
    assert (await overview.default_range()).name == "15m"
    await advance(shop, "2h")
    assert (await overview.default_range()).name == "1h"


async def test_past_buckets_are_not_counted_again(shop: Inbox) -> None:
    clock = StoppedClock()
    overview = Overview(shop._runtime, clock)
    await send(shop, "evt_1")
    assert await total_of(overview, "received") == 1
    queries: list[datetime] = []
    original = shop._runtime.store.stats.rates

    async def rates(since: datetime, seconds: int) -> Any:
        queries.append(since)
        return await original(since, seconds)

    shop._runtime.store.stats.rates = rates  # type: ignore[method-assign]
    await send(shop, "evt_2")
    assert await total_of(overview, "received") == 1, "the counts are cached for a second"
    clock.seconds += 1.0
    assert await total_of(overview, "received") == 2
    assert await total_of(overview, "received") == 2
    (since,) = queries
    assert (await shop._runtime.store.operations.now() - since).total_seconds() < 180


async def test_snapshot_is_cached_until_a_change_invalidates_it(shop: Inbox) -> None:
    overview = Overview(shop._runtime, StoppedClock())
    assert (await overview.snapshot())["paused"] == {}
    await shop._runtime.store.pauses.pause("stripe", "me")
    assert (await overview.snapshot())["paused"] == {}
    overview.invalidate()
    assert set((await overview.snapshot())["paused"]) == {"stripe"}


async def test_sources_include_those_that_only_have_receipts(shop: Inbox) -> None:
    await send(shop, "evt_1")
    del shop._runtime.sources["stripe"]
    rows = await Overview(shop._runtime).sources("1h")
    assert [row["source"] for row in rows] == ["github", "stripe"] and rows[1]["waiting"] == 1
