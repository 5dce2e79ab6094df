"""The numbers of the overview: rates over time and the current backlog, cached for a short time.

Rates are counted from the rows, through indexes by time. A past bucket does not change, so only the latest buckets are
counted again. Rejections and latencies have no rows: every process writes its counts to the database every few seconds,
and the counts that this process has not written yet are added.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.observability.receiver_stats import percentiles
from oncehook.operations.work import read_work
from oncehook.runtime import Runtime
from oncehook.runtime.read_replica import store_to_show

SERIES = ("received", "duplicate", "rejected", "failed")
MAX_COUNT = 10_000
"""Counts of receipts and effects stop here and are shown as “10,000+”."""

LATENCY_SECONDS = 3600.0
"""The latency percentiles cover this time."""

COMMIT_DELAY = 15
"""Seconds by which a row may become visible after its timestamp, because its transaction commits later."""


@dataclass(frozen=True, slots=True)
class Range:
    """A time range that ends now, divided into buckets."""

    name: str
    title: str
    seconds: int
    bucket: int
    max_age: float  # seconds after which its counts are refreshed


RANGES = {
    "15m": Range("15m", "15 minutes", 900, 60, 1.0),
    "1h": Range("1h", "hour", 3600, 60, 1.0),
    "24h": Range("24h", "day", 86400, 1800, 5.0),
    "7d": Range("7d", "week", 7 * 86400, 6 * 3600, 30.0),
}
Counts = dict[tuple[str, str], Counter[int]]  # (series, source) → bucket → how many


class Rates:
    """The cached counts of one range."""

    def __init__(self, runtime: Runtime, range_: Range, clock: Clock = SYSTEM) -> None:
        self.runtime = runtime
        self.range = range_
        self.clock = clock
        self._counts: Counts = {}
        self._recount_from: int | None = None  # the first bucket that may still change
        self._refreshed = float("-inf")
        self._lock = asyncio.Lock()

    async def get(self) -> tuple[list[int], Counts]:
        """Return the start times of the buckets, oldest first, and their counts."""
        async with self._lock:
            now = int(self.clock.now())
            first = (now - self.range.seconds) // self.range.bucket * self.range.bucket + self.range.bucket
            buckets = list(range(first, now + 1, self.range.bucket))
            if self.clock.monotonic() - self._refreshed >= self.range.max_age:
                await self._refresh(max(first, self._recount_from or first), now)
                self._refreshed = self.clock.monotonic()
            return buckets, self._with_unwritten(buckets[-1])

    async def _refresh(self, since: int, now: int) -> None:
        rows = await store_to_show(self.runtime).stats.rates(datetime.fromtimestamp(since, UTC), self.range.bucket)
        oldest = now - self.range.seconds - self.range.bucket
        for counts in self._counts.values():
            for bucket in [start for start in counts if start >= since or start < oldest]:
                del counts[bucket]
        for row in rows:
            counts = self._counts.setdefault((row.series, row.source), Counter())
            counts[row.bucket] = row.number
        self._recount_from = (now - COMMIT_DELAY) // self.range.bucket * self.range.bucket

    def _with_unwritten(self, last: int) -> Counts:
        counts = dict(self._counts)
        for (source, _), number in self.runtime.reception.stats.unwritten_rejections.items():
            counts["rejected", source] = counts.get(("rejected", source), Counter()) + Counter({last: number})
        return counts


class Overview:
    """The numbers of the overview, for the dashboard and the API."""

    def __init__(self, runtime: Runtime, clock: Clock = SYSTEM) -> None:
        self.runtime = runtime
        self.clock = clock
        self._rates = {name: Rates(runtime, range_, clock) for name, range_ in RANGES.items()}
        self._snapshot: tuple[float, dict[str, Any]] | None = None
        self._lock = asyncio.Lock()
        self._is_young = True

    async def default_range(self) -> Range:
        """The last hour, or 15 minutes while the oldest event is less than an hour old."""
        if self._is_young:
            history = await store_to_show(self.runtime).alerts.measure("history_age", {})
            self._is_young = not history or history[0].value < RANGES["1h"].seconds
        return RANGES["15m" if self._is_young else "1h"]

    async def rates(self, range_: str, source: str | None = None) -> tuple[list[int], dict[str, list[int]]]:
        """Return the bucket starts, and for each series one count per bucket; of one source or of all."""
        buckets, counts = await self._rates[range_].get()
        series = {name: [0] * len(buckets) for name in SERIES}
        for (name, of_source), numbers in counts.items():
            if source is None or source == of_source:
                series[name] = [sum_ + numbers[b] for sum_, b in zip(series[name], buckets, strict=True)]
        return buckets, series

    async def snapshot(self) -> dict[str, Any]:
        """Backlog, dead letters, lag, last receipt and pause by source. It is at most one second old."""
        async with self._lock:
            if self._snapshot is None or self.clock.monotonic() - self._snapshot[0] >= 1.0:
                store = self.runtime.all_shards
                work, last_received_at = await read_work(store_to_show(self.runtime), MAX_COUNT)
                pauses = await store.pauses.active()
                values = {
                    "work": work,
                    "last_received_at": last_received_at,
                    "sources": await store.receipts.sources(),
                    "acks": await store.alerts.measure("ack_buckets", {"seconds": LATENCY_SECONDS}),
                    "paused": {row.source: row for row in pauses if row.source},
                    "paused_consumers": {row.consumer: row for row in pauses if row.consumer},
                }
                self._snapshot = self.clock.monotonic(), values
            return self._snapshot[1]

    def invalidate(self) -> None:
        """Discard the snapshot after a change."""
        self._snapshot = None

    async def sources(self, range_: str) -> list[dict[str, Any]]:
        """One row per source: the configured ones, and those that only have receipts."""
        snapshot = await self.snapshot()
        names = sorted({*self.runtime.sources, *snapshot["sources"]})
        rows = []
        for name in names:
            _, series = await self.rates(range_, name)
            rows.append({**self._row(snapshot, name), **{key: sum(series[key]) for key in SERIES}})
        return rows

    def _row(self, snapshot: dict[str, Any], name: str) -> dict[str, Any]:
        return {
            "source": name,
            **snapshot["work"].figures(source=name),
            "last_received_at": snapshot["last_received_at"].get(name),
            "accept_seconds": self._latencies(snapshot, name),
            "is_paused": name in snapshot["paused"],
        }

    async def total(self) -> dict[str, Any]:
        """The same numbers for all sources together."""
        snapshot = await self.snapshot()
        return {
            **snapshot["work"].figures(),
            "accept_seconds": self._latencies(snapshot),
            "is_empty": not snapshot["sources"],
            "paused": sorted(snapshot["paused"]),
            "paused_consumers": sorted(snapshot["paused_consumers"]),
            "spooled": await asyncio.to_thread(self.runtime.readiness.spooled_events) or 0,
        }

    def _latencies(self, snapshot: dict[str, Any], name: str | None = None) -> dict[str, float] | None:
        """Ack latency percentiles of one source or of all, in the last hour, across all processes."""
        counts: Counter[int] = Counter()
        for row in snapshot["acks"]:
            if name in (None, row.source):
                counts[row.bucket] += row.value
        for (source, bucket), number in self.runtime.reception.stats.unwritten_acks.items():
            if name in (None, source):
                counts[bucket] += number
        return percentiles(counts)
