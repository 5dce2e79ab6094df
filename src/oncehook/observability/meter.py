"""What this process has seen at its receiver and not written to the database yet: latencies of acks, and rejections.

A rejected delivery leaves no row, and neither does the time that an ack took: both are counted here and written every
few seconds, so that the database has the numbers of all processes. Senders choose neither the sources nor the reasons
here, so the memory is bounded.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from oncehook.concurrency.clock import SYSTEM, Clock

BOUNDS = tuple(0.0001 * 1.2**number for number in range(73))
"""The upper bounds of the buckets of latencies, in seconds: 0.1 ms to 50 s, each a fifth above the one before."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The last delivery of a source that was rejected."""

    at: datetime
    reason: str
    detail: str


class Meter:
    """Counts of one process. `acked` is on the receiver's hot path: it finds a bucket and adds one."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.started = clock.datetime()
        self.last_refused: dict[str, Refusal] = {}
        self.unwritten: Counter[tuple[str, str]] = Counter()  # rejections, by source and reason
        self.unwritten_acks: Counter[tuple[str, int]] = Counter()  # by source and bucket

    def acked(self, source: str, seconds: float) -> None:
        self.unwritten_acks[source, bisect_left(BOUNDS, seconds)] += 1

    def refused(self, source: str, reason: str, detail: str) -> None:
        """Count a rejection. `source` is a configured one, or "unknown"."""
        self.last_refused[source] = Refusal(self.clock.datetime(), reason, detail)
        self.unwritten[source, reason] += 1


def percentiles(counts: Mapping[int, int]) -> dict[str, float] | None:
    """Seconds within which 50, 95 and 99 of a hundred deliveries were acked, from counts by bucket; None without any.

    Inside a bucket the latencies count as evenly spread, as for Prometheus' `histogram_quantile`.
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
