"""Counts rejections and ack latencies of this process until they are written to the database.

A rejected delivery leaves no row, and neither does the latency of an ack. The process counts both in memory and writes
them every few seconds, so the database has the numbers of all processes. Senders choose neither the source names nor
the reasons, so memory is bounded.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from oncehook.concurrency.clock import SYSTEM, Clock

BOUNDS = tuple(0.0001 * 1.2**number for number in range(73))
"""The upper bounds of the latency buckets in seconds: from 0.1 ms to 50 s, each 20 % above the previous one."""


@dataclass(frozen=True, slots=True)
class LastRejection:
    """The most recent delivery to a source that was rejected."""

    at: datetime
    reason: str
    detail: str


class ReceiverStats:
    """The counts of one process. `record_ack` is on the receiver's hot path: it finds a bucket and adds one."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.started = clock.datetime()
        self.last_rejections: dict[str, LastRejection] = {}
        self.unwritten_rejections: Counter[tuple[str, str]] = Counter()  # by source and reason
        self.unwritten_acks: Counter[tuple[str, int]] = Counter()  # by source and bucket

    def record_ack(self, source: str, seconds: float) -> None:
        self.unwritten_acks[source, bisect_left(BOUNDS, seconds)] += 1

    def record_rejection(self, source: str, reason: str, detail: str) -> None:
        """Count a rejection. `source` is the name of a configured source, or "unknown"."""
        self.last_rejections[source] = LastRejection(self.clock.datetime(), reason, detail)
        self.unwritten_rejections[source, reason] += 1


def percentiles(counts: Mapping[int, int]) -> dict[str, float] | None:
    """Return p50, p95 and p99 in seconds from the counts per bucket, or None if there are no counts.

    Latencies are assumed to be evenly spread inside a bucket, as in Prometheus' `histogram_quantile`.
    """
    total = sum(counts.values())
    return {f"p{part}": _quantile(counts, total * part / 100) for part in (50, 95, 99)} if total else None


def _quantile(counts: Mapping[int, int], rank: float) -> float:
    below = 0
    for bucket, number in sorted(counts.items()):
        if below + number >= rank:
            lowest = BOUNDS[bucket - 1] if bucket else 0.0
            highest = BOUNDS[min(bucket, len(BOUNDS) - 1)]
            return lowest + (highest - lowest) * (rank - below) / number
        below += number
    return BOUNDS[-1]
