"""Renders `/metrics`: the counters of the processes, and gauges that are read from the database.

However often Prometheus scrapes, the database is queried at most every 15 seconds and the text is rendered at most
once a second. The first scrape imports prometheus-client.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.effect import EffectState
from oncehook.model.errors import Unavailable
from oncehook.model.states import State
from oncehook.observability.metrics import BOUNDS, METRICS, VALUES, Histogram, Key, Tally, combined_tally
from oncehook.store.store import Store

PER_SOURCE = ("oncehook_oldest_unfinished_seconds", "oncehook_lag_seconds", "oncehook_unhandled", "oncehook_paused")

QUERY_EVERY = 15.0
"""Seconds between two queries of the database."""

RENDER_EVERY = 1.0
"""Seconds for which a rendered text is served again."""


class MetricsExporter:
    """Serves `/metrics` in Prometheus' text format.

    Every series of the configured `sources` exists from the start with 0, so that `increase()` sees the first event.
    """

    def __init__(self, store: Store, sources: Collection[str] = (), clock: Clock = SYSTEM) -> None:
        self.store = store
        self.sources = sources
        self.clock = clock
        self._gauges: dict[Key, float] = {}
        self._queried_at = -QUERY_EVERY
        self._lock = asyncio.Lock()
        self._text = b""
        self._rendered_at = -RENDER_EVERY

    async def text(self) -> bytes:
        """Return all metrics. If the database does not answer, only the gauges that it provides are missing."""
        async with self._lock:
            if self.clock.monotonic() - self._queried_at >= QUERY_EVERY:
                self._gauges = await self._query_gauges()
                self._queried_at = self.clock.monotonic()
            if self.clock.monotonic() - self._rendered_at >= RENDER_EVERY:
                self._text = render(with_zeros(combined_tally(), self.sources), self._gauges)
                self._rendered_at = self.clock.monotonic()
            return self._text

    async def _query_gauges(self) -> dict[Key, float]:
        try:
            counts, lags = await self.store.stats.counts(), await self.store.stats.lags()
            effects, pauses = await self.store.effects.counts(), await self.store.pauses.active()
            unfinished, unhandled = (
                await self.store.alerts.measure("oldest_unfinished", {}),
                await self.store.roster.unhandled(),
            )
        except Unavailable:
            return {}
        gauges: dict[Key, float] = {("oncehook_effects", state.value): 0.0 for state in EffectState}
        for source in {*self.sources, *(count.source for count in counts)}:
            gauges |= {("oncehook_receipts", source, state.value): 0.0 for state in State}
            gauges |= {(name, source): 0.0 for name in PER_SOURCE}
        for count in counts:
            gauges["oncehook_receipts", count.source, count.status] = count.receipts
        for source, seconds in lags.items():
            gauges["oncehook_lag_seconds", source] = max(0.0, seconds)
        for age in unfinished:
            gauges["oncehook_oldest_unfinished_seconds", age.source] = max(0.0, age.value)
        for source, waiting in unhandled.items():
            gauges["oncehook_unhandled", source] = waiting.number
        for pause in pauses:
            gauges["oncehook_paused", pause.source] = 1.0
        for name, number in effects.items():
            gauges["oncehook_effects", name] = number
        return gauges


def with_zeros(tally: Tally, sources: Collection[str]) -> Tally:
    """Add every missing counter and histogram of these sources with 0, and return the tally."""
    for name, (kind, labels, _) in METRICS.items():
        for source in sources:
            if kind == "counter":
                for value in VALUES.get(labels[-1], ("",)):
                    tally.counters[(name, source, value)[: len(labels) + 1]] += 0.0
            elif kind == "histogram" and labels == ("source",):
                tally.histograms[name, source].sum += 0.0
    return tally


def render(tally: Tally, gauges: Mapping[Key, float]) -> bytes:
    """Render metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class TallyCollector:
        def collect(self) -> list[Any]:
            return [_metric_family(name, tally, gauges) for name in METRICS]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(TallyCollector())
    return generate_latest(registry)


def _metric_family(name: str, tally: Tally, gauges: Mapping[Key, float]) -> Any:
    from prometheus_client import core

    kind, labels, meaning = METRICS[name]
    if kind == "histogram":
        histogram = core.HistogramMetricFamily(name, meaning, labels=labels)
        for key, value in sorted(tally.histograms.items()):
            if key[0] == name:
                histogram.add_metric(key[1:], _buckets(value), value.sum)
        return histogram
    make: Any = core.CounterMetricFamily if kind == "counter" else core.GaugeMetricFamily
    family = make(name, meaning, labels=labels)
    for key, number in sorted((tally.counters if kind == "counter" else gauges).items()):
        if key[0] == name:
            family.add_metric(key[1:], number)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    below, buckets = 0, []
    for bound, number in zip([*map(str, BOUNDS), "+Inf"], histogram.counts, strict=True):
        below += number
        buckets.append((bound, float(below)))
    return buckets
