"""The numbers of the overview: rates over time, and where everything stands, each asked for no oftener than need be.

Rates come from the rows themselves, through indexes by time. A bucket that is over does not change, so only the last
ones are counted again. Rejections and latencies leave no row of their own: every process writes its counts to the
database every few seconds. Those that this process has not written yet are added.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.observability.receiver_stats import percentiles
from oncehook.runtime import Runtime

SERIES = ("received", "duplicate", "rejected", "failed")
MOST = 10_000
"""Up to where receipts are counted one by one; beyond, it is “more than”."""

ACKS_OF = 3600.0
"""Over how many seconds latencies are shown."""

LATE = 15
"""Seconds by which a row may be seen after its own time: a commit takes a while."""


@dataclass(frozen=True, slots=True)
class Range:
    """A stretch of time up to now, in buckets."""

    name: str
    title: str
    seconds: int
    bucket: int
    fresh: float  # for how many seconds an answer is as good as a new one


RANGES = {
    "15m": Range("15m", "15 minutes", 900, 60, 1.0),
    "1h": Range("1h", "hour", 3600, 60, 1.0),
    "24h": Range("24h", "day", 86400, 1800, 5.0),
    "7d": Range("7d", "week", 7 * 86400, 6 * 3600, 30.0),
}
Counts = dict[tuple[str, str], Counter[int]]  # (series, source) → bucket → how many


class Rates:
    """The counts of one range, kept and brought up to date."""

    def __init__(self, runtime: Runtime, over: Range, clock: Clock = SYSTEM) -> None:
        self.runtime = runtime
        self.over = over
        self.clock = clock
        self._counts: Counts = {}
        self._known_from: int | None = None  # the first bucket that has to be counted again
        self._asked = float("-inf")
        self._asking = asyncio.Lock()

    async def get(self) -> tuple[list[int], Counts]:
        """The starts of the buckets, oldest first, and what is in them."""
        async with self._asking:
            now = int(self.clock.now())
            first = (now - self.over.seconds) // self.over.bucket * self.over.bucket + self.over.bucket
            buckets = list(range(first, now + 1, self.over.bucket))
            if self.clock.monotonic() - self._asked >= self.over.fresh:
                await self._ask(max(first, self._known_from or first), now)
                self._asked = self.clock.monotonic()
            return buckets, self._with_unwritten(buckets[-1])

    async def _ask(self, since: int, now: int) -> None:
        rows = await self.runtime.store.stats.rates(datetime.fromtimestamp(since, UTC), self.over.bucket)
        oldest = now - self.over.seconds - self.over.bucket
        for counts in self._counts.values():
            for bucket in [one for one in counts if one >= since or one < oldest]:
                del counts[bucket]
        for row in rows:
            counts = self._counts.setdefault((row.series, row.source), Counter())
            counts[row.bucket] = row.number
        self._known_from = (now - LATE) // self.over.bucket * self.over.bucket

    def _with_unwritten(self, last: int) -> Counts:
        counts = dict(self._counts)
        for (source, _), number in self.runtime.reception.stats.unwritten_rejections.items():
            counts["rejected", source] = counts.get(("rejected", source), Counter()) + Counter({last: number})
        return counts


class Overview:
    """What the overview shows, for pages and for the API."""

    def __init__(self, runtime: Runtime, clock: Clock = SYSTEM) -> None:
        self.runtime = runtime
        self.clock = clock
        self._rates = {name: Rates(runtime, over, clock) for name, over in RANGES.items()}
        self._standing: tuple[float, dict[str, Any]] | None = None
        self._asking = asyncio.Lock()
        self._is_young = True

    async def usual_range(self) -> Range:
        """The range to begin with: an hour, or 15 minutes while the first event is younger than an hour."""
        if self._is_young:
            history = await self.runtime.store.alerts.measure("history", {})
            self._is_young = not history or history[0].value < RANGES["1h"].seconds
        return RANGES["15m" if self._is_young else "1h"]

    async def rates(self, over: str, source: str | None = None) -> tuple[list[int], dict[str, list[int]]]:
        """Per series, one number a bucket; of one source, or of all."""
        buckets, counts = await self._rates[over].get()
        series = {name: [0] * len(buckets) for name in SERIES}
        for (name, of_source), numbers in counts.items():
            if source is None or source == of_source:
                series[name] = [sum_ + numbers[b] for sum_, b in zip(series[name], buckets, strict=True)]
        return buckets, series

    async def standing(self) -> dict[str, Any]:
        """Backlog, dead letters, lag, the last receipt and the pause, per source; a second old at most."""
        async with self._asking:
            if self._standing is None or self.clock.monotonic() - self._standing[0] >= 1.0:
                store = self.runtime.store
                found = {
                    **(await store.stats.standing(MOST)).as_json(),
                    "lag": await store.stats.lags(),
                    "unfinished": {row.source: row.value for row in await store.alerts.measure("unfinished", {})},
                    "unhandled": {name: row.number for name, row in (await store.roster.unhandled()).items()},
                    "sources": await store.receipts.sources(),
                    "acks": await store.alerts.measure("acks", {"seconds": ACKS_OF}),
                    "paused": {row.source: row for row in await store.pauses.active()},
                }
                self._standing = self.clock.monotonic(), found
            return self._standing[1]

    def forget(self) -> None:
        """Somebody changed something: how it stands is asked for anew."""
        self._standing = None

    async def sources(self, over: str) -> list[dict[str, Any]]:
        """A row a source, configured or only known from its receipts."""
        standing = await self.standing()
        names = sorted({*self.runtime.sources, *standing["sources"]})
        rows = []
        for name in names:
            _, series = await self.rates(over, name)
            rows.append({**await self._row(standing, name), **{word: sum(series[word]) for word in SERIES}})
        return rows

    async def _row(self, standing: dict[str, Any], name: str) -> dict[str, Any]:
        return {
            "source": name,
            "waiting": standing["waiting"].get(name, 0),
            "unhandled": standing["unhandled"].get(name, 0),
            "dead_letters": standing["dead_letters"].get(name, 0),
            "lag_seconds": round(max(0.0, standing["lag"].get(name, 0.0)), 3),
            "oldest_unfinished_seconds": round(max(0.0, standing["unfinished"].get(name, 0.0)), 3),
            "last_received_at": standing["last_received_at"].get(name),
            "accept_seconds": self._latencies(standing, name),
            "is_paused": name in standing["paused"],
        }

    async def total(self) -> dict[str, Any]:
        """The same for everything together."""
        standing = await self.standing()
        return {
            "waiting": sum(standing["waiting"].values()),
            "unhandled": sum(standing["unhandled"].values()),
            "dead_letters": sum(standing["dead_letters"].values()),
            "lag_seconds": round(max([0.0, *standing["lag"].values()]), 3),
            "oldest_unfinished_seconds": round(max([0.0, *standing["unfinished"].values()]), 3),
            "accept_seconds": self._latencies(standing),
            "is_empty": not standing["sources"],
            "paused": sorted(standing["paused"]),
        }

    def _latencies(self, standing: dict[str, Any], name: str | None = None) -> dict[str, float] | None:
        """Percentiles of the acks of a source, or of all, within the last hour, in all processes."""
        counts: Counter[int] = Counter()
        for row in standing["acks"]:
            if name in (None, row.source):
                counts[row.bucket] += row.value
        for (source, bucket), number in self.runtime.reception.stats.unwritten_acks.items():
            if name in (None, source):
                counts[bucket] += number
        return percentiles(counts)
