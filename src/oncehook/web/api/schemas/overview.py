"""The overview in requests and responses."""

from typing import Literal

from msgspec import Struct

from oncehook.web.api.schemas.values import Text


class OverviewQuery(Struct, frozen=True):
    """Selects the time range, and optionally one source."""

    range: Literal["15m", "1h", "24h", "7d"] = "1h"
    source: Text = ""


class Percentiles(Struct):
    """Ack latency in seconds: the median, the 95th and the 99th percentile."""

    p50: float
    p95: float
    p99: float


class OverviewState(Struct):
    """Counts per bucket and the current backlog, across all processes. Latencies are those of the last hour."""

    range: str
    bucket_seconds: int
    buckets: list[str]
    received: list[int]
    duplicate: list[int]
    rejected: list[int]
    failed: list[int]
    waiting: int
    unhandled: int
    dead_letters: int
    lag_seconds: float
    oldest_unfinished_seconds: float
    accept_seconds: Percentiles | None
    paused: list[str]
    paused_consumers: list[str]
    spooled: int  # events in the spool of the host that answers
