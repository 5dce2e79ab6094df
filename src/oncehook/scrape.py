"""What a scrape of `/metrics` is given: what was counted, and what the database knows better.

The database is asked at most once in fifteen seconds, however often it is scraped. prometheus-client is imported by the
first scrape.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from oncehook.clock import SYSTEM
from oncehook.errors import Unavailable
from oncehook.metrics import BOUNDS, METRICS, Histogram, Key, Tally, together
from oncehook.store import Store

ASK_EVERY = 15.0


class Scrape:
    """Answers `/metrics`: what was counted, and what the database says, which is asked now and then."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._gauges: dict[Key, float] = {}
        self._asked = -ASK_EVERY
        self._asking = asyncio.Lock()

    async def text(self) -> bytes:
        """The whole in Prometheus' text format. A database that does not answer leaves only its own figures out."""
        async with self._asking:
            if SYSTEM.monotonic() - self._asked >= ASK_EVERY:
                self._gauges = await self._ask()
                self._asked = SYSTEM.monotonic()
        return render(together(), self._gauges)

    async def _ask(self) -> dict[Key, float]:
        try:
            counts, lags, effects = (
                await self.store.counts(), await self.store.lags(), await self.store.effect_counts()
            )  # fmt: skip
        except Unavailable:
            return {}
        gauges: dict[Key, float] = {}
        for row in counts:
            if "status" in row:
                gauges["oncehook_receipts", row["source"], row["status"]] = row["receipts"]
                gauges["oncehook_lag_seconds", row["source"]] = 0.0
        for source, seconds in lags.items():
            gauges["oncehook_lag_seconds", source] = max(0.0, seconds)
        for state, number in effects.items():
            gauges["oncehook_effects", state] = number
        return gauges


def render(tally: Tally, gauges: Mapping[Key, float]) -> bytes:
    """Metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Given:
        def collect(self) -> list[Any]:
            return [family(name, tally, gauges) for name in METRICS]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given())
    return generate_latest(registry)


def family(name: str, tally: Tally, gauges: Mapping[Key, float]) -> Any:
    from prometheus_client import core

    kind, labels, meaning = METRICS[name]
    if kind == "histogram":
        histogram = core.HistogramMetricFamily(name, meaning, labels=labels)
        for key, value in sorted(tally.histograms.items()):
            if key[0] == name:
                histogram.add_metric(key[1:], _buckets(value), value.sum)
        return histogram
    made: Any = (core.CounterMetricFamily if kind == "counter" else core.GaugeMetricFamily)(
        name, meaning, labels=labels
    )
    for key, number in sorted((tally.counters if kind == "counter" else gauges).items()):
        if key[0] == name:
            made.add_metric(key[1:], number)
    return made


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    below, buckets = 0, []
    for bound, number in zip([*map(str, BOUNDS), "+Inf"], histogram.counts, strict=True):
        below += number
        buckets.append((bound, float(below)))
    return buckets
