"""Renders `/metrics`: the counters of the processes, and gauges that are read from the database.

However often Prometheus scrapes, the database is queried at most every 15 seconds and the text is rendered at most
once a second. The first scrape imports prometheus-client.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Protocol

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.effect import EffectState
from oncehook.model.errors import Unavailable
from oncehook.model.event import MAIN
from oncehook.model.states import State
from oncehook.observability.metrics import BOUNDS, METRICS, VALUES, Histogram, Key, Tally, combined_tally
from oncehook.operations.work import Part, read_open_work
from oncehook.store.replica import ReplicaMonitor
from oncehook.store.store import Store

PER_CONSUMER = ("oncehook_oldest_unfinished_seconds", "oncehook_lag_seconds", "oncehook_unhandled")

ReadGauges = Callable[[], Awaitable[dict[Key, float]]]
"""Reads gauges from outside the database. May raise Unavailable."""

QUERY_EVERY = 15.0
"""Seconds between two queries of the database."""

RENDER_EVERY = 1.0
"""Seconds for which a rendered text is served again."""


class Monitored(Protocol):
    """A read replica."""

    monitor: ReplicaMonitor


class MetricsExporter:
    """Serves `/metrics` in Prometheus' text format.

    Every series of the configured `sources`, and of the consumers that subscribe to them, exists from the start with 0,
    so that `increase()` sees the first event.
    """

    def __init__(
        self,
        store: Store,
        sources: Collection[str] = (),
        clock: Clock = SYSTEM,
        *,
        replica: Callable[[], Monitored | None] = lambda: None,
    ) -> None:
        self.store = store
        self.sources = sources
        self.clock = clock
        self.gauges: list[ReadGauges] = []  # of parts outside the database
        self.replica = replica
        self._gauges: dict[Key, float] = {}
        self._parts: set[Part] = set()
        self._queried_at = -QUERY_EVERY
        self._lock = asyncio.Lock()
        self._text = b""
        self._rendered_at = -RENDER_EVERY

    async def text(self) -> bytes:
        """Return all metrics. If the database does not answer, only the gauges that it provides are missing."""
        async with self._lock:
            if self.clock.monotonic() - self._queried_at >= QUERY_EVERY:
                self._gauges = await self._query_gauges() | await self._read_parts()
                self._queried_at = self.clock.monotonic()
            if self.clock.monotonic() - self._rendered_at >= RENDER_EVERY:
                parts = self._parts | {(source, MAIN) for source in self.sources}
                gauges = self._gauges | replica_gauges(self.replica())
                self._text = render(with_zeros(combined_tally(), self.sources, parts), gauges)
                self._rendered_at = self.clock.monotonic()
            return self._text

    async def _read_parts(self) -> dict[Key, float]:
        """Read the gauges of all parts. Those of a part that does not respond are missing."""
        values: dict[Key, float] = {}
        for read in self.gauges:
            with suppress(Unavailable):
                values |= await read()
        return values

    async def _query_gauges(self) -> dict[Key, float]:
        try:
            counts, work = await self.store.stats.counts(), await read_open_work(self.store)
            effects, pauses = await self.store.effects.counts(), await self.store.pauses.active()
            subscribed = {(row.source, row.name) for row in await self.store.consumers.all()}
        except Unavailable:
            return {}
        self._parts = subscribed | {(count.source, count.consumer) for count in counts}
        parts = self._parts | {(source, MAIN) for source in self.sources}
        gauges: dict[Key, float] = {("oncehook_effects", state.value): 0.0 for state in EffectState}
        for part in parts:
            gauges |= {("oncehook_receipts", *part, state.value): 0.0 for state in State}
            gauges |= {(name, *part): 0.0 for name in PER_CONSUMER}
            gauges["oncehook_paused", part[0]] = gauges["oncehook_consumer_paused", part[1]] = 0.0
        for count in counts:
            gauges["oncehook_receipts", count.source, count.consumer, count.status] = count.receipts
        gauges |= {("oncehook_lag_seconds", *part): max(0.0, lag) for part, lag in work.lags.items()}
        gauges |= {("oncehook_oldest_unfinished_seconds", *part): max(0.0, age) for part, age in work.ages.items()}
        gauges |= {("oncehook_unhandled", *part): number for part, number in work.unhandled.items()}
        for pause in pauses:
            kind = "consumer_paused" if pause.consumer else "paused"
            gauges[f"oncehook_{kind}", pause.consumer or pause.source] = 1.0
        for name, number in effects.items():
            gauges["oncehook_effects", name] = number
        return gauges


def replica_gauges(replica: Monitored | None) -> dict[Key, float]:
    """Return the gauges of the read replica. They are of this process: each measures the lag itself."""
    if replica is None:
        return {}
    gauges: dict[Key, float] = {("oncehook_replica_used",): float(replica.monitor.is_usable)}
    if replica.monitor.lag is not None:
        gauges["oncehook_replica_lag_seconds",] = replica.monitor.lag
    return gauges


def with_zeros(tally: Tally, sources: Collection[str], parts: Collection[Part]) -> Tally:
    """Add every missing counter and histogram of these sources and consumers with 0, and return the tally."""
    for name, (kind, labels, _) in METRICS.items():
        of_consumers = len(labels) > 1 and labels[1] == "consumer"
        for key in parts if of_consumers else [(source,) for source in sources]:
            if kind == "counter":
                for value in VALUES.get(labels[-1] if labels else "", ("",)):
                    tally.counters[(name, *key, value)[: len(labels) + 1]] += 0.0
            elif kind == "histogram" and labels == ("source",):
                tally.histograms[name, *key].sum += 0.0
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
