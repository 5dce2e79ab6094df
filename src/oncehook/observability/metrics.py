"""The table of metrics, and the counters of this process. Counting is on the hot path, so counters are plain numbers.

If several processes serve one socket, each writes its counts to a shared folder once a second. The process that
Prometheus scrapes adds up all of them. The file of a process that died stays, so no counter ever decreases.
"""

import asyncio
import os
from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import msgspec

METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "oncehook_received_total": ("counter", ("source",), "First deliveries of events that were accepted."),
    "oncehook_duplicates_total": ("counter", ("source",), "Deliveries of events that were already recorded."),
    "oncehook_fast_path_hits_total": (
        "counter",
        ("source",),
        "Duplicates that were answered without a claim. They are also in `oncehook_duplicates_total`.",
    ),
    "oncehook_rejected_total": ("counter", ("source", "reason"), "Deliveries that were rejected."),
    "oncehook_accept_seconds": ("histogram", ("source",), "Seconds from a delivery's arrival to its ack."),
    "oncehook_processed_total": ("counter", ("source", "consumer", "outcome"), "Attempts that ended, by outcome."),
    "oncehook_handle_seconds": ("histogram", ("source", "consumer", "handler"), "Seconds that a handler ran."),
    "oncehook_stale_total": (
        "counter",
        ("source", "consumer"),
        "Stale events that were kept from overwriting newer state.",
    ),
    "oncehook_effect_conflicts_total": (
        "counter",
        ("source", "consumer"),
        "Effects that were requested again and not repeated.",
    ),
    "oncehook_oldest_unfinished_seconds": (
        "gauge",
        ("source", "consumer"),
        "Age of the oldest unfinished event, whether it waits or a worker has leased it. A replay resets the age.",
    ),
    "oncehook_lag_seconds": (
        "gauge",
        ("source", "consumer"),
        "Seconds that the oldest due event has waited for a worker. Leased events do not count.",
    ),
    "oncehook_unhandled": ("gauge", ("source", "consumer"), "Waiting events that no process has a handler for."),
    "oncehook_paused": ("gauge", ("source",), "1 while a source is paused, else 0."),
    "oncehook_consumer_paused": ("gauge", ("consumer",), "1 while a consumer is paused, else 0."),
    "oncehook_receipts": (
        "gauge",
        ("source", "consumer", "state"),
        "Receipts by state. An event has one receipt for each of its consumers.",
    ),
    "oncehook_queue_sent_total": ("counter", (), "Receipts that were sent to the queue of workers."),
    "oncehook_queue_ignored_total": ("counter", (), "Messages in the queue of workers that name no receipt."),
    "oncehook_queue_messages": (
        "gauge",
        ("state",),
        "Messages in the queue of workers: `waiting`, `in_flight` or `delayed`. The queue reports them approximately.",
    ),
    "oncehook_intake_lag_seconds": (
        "gauge",
        ("source",),
        "Age of the oldest message of a source's queue that this process holds. It grows while the database is down.",
    ),
    "oncehook_effects": ("gauge", ("state",), "Effects by state."),
    "oncehook_replica_lag_seconds": (
        "gauge",
        (),
        "How far the read replica is behind, as this process measured it. Absent while it is down or not configured.",
    ),
    "oncehook_replica_used": ("gauge", (), "1 if this process reads from the read replica, 0 if not."),
    "oncehook_spool_events": ("gauge", (), "Events in the spool of this host, which are acked and not claimed yet."),
}
"""Name → (kind, labels, meaning). docs/metrics.md is generated from this table. No label value comes from a sender."""

VALUES = {
    "outcome": ("processed", "retrying", "failed", "crashed", "lease lost"),
    "reason": (
        "bad_signature",
        "stale_timestamp",
        "malformed",
        "too_large",
        "timeout",
        "unsupported_media_type",
        "head_too_large",
        "foreign_origin",
        "method_not_allowed",
        "unknown_tenant",
        "tenant_missing",
        "rate_limited",
        "unavailable",
    ),
}
"""Label → its values. Series with these values exist before anything is counted."""

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WRITE_EVERY = 1.0

Key = tuple[str, ...]  # the metric's name and its labels' values


class Histogram(msgspec.Struct):
    """The number of observations per bucket, the last one above all bounds, and their sum."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum: float = 0.0

    def add(self, other: "Histogram") -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class Snapshot(msgspec.Struct):
    """The counts of one process, as it writes them to its file."""

    counters: list[tuple[list[str], float]]
    histograms: list[tuple[list[str], Histogram]]


class Tally:
    """The counts of one process."""

    def __init__(self) -> None:
        self.counters: defaultdict[Key, float] = defaultdict(float)
        self.histograms: defaultdict[Key, Histogram] = defaultdict(Histogram)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self.counters[name, *labels] += by

    def observe(self, name: str, *labels: str, value: float) -> None:
        self.observe_key((name, *labels), value)

    def observe_key(self, key: Key, value: float) -> None:
        """Like `observe`, with a prebuilt key."""
        histogram = self.histograms[key]
        histogram.counts[bisect_left(BOUNDS, value)] += 1
        histogram.sum += value

    def snapshot(self) -> Snapshot:
        return Snapshot(
            [(list(key), value) for key, value in self.counters.items()],
            [(list(key), value) for key, value in self.histograms.items()],
        )

    def add(self, other: Snapshot) -> None:
        for key, value in other.counters:
            self.counters[tuple(key)] += value
        for key, histogram in other.histograms:
            self.histograms[tuple(key)].add(histogram)


TALLY = Tally()
"""The counts of this process. All inboxes in the process share it, like the log."""

count = TALLY.count
observe = TALLY.observe
observe_key = TALLY.observe_key


# -- several processes ----------------------------------------------------------------------------------------------

FOLDER = "ONCEHOOK_METRICS_FOLDER"
"""Environment variable: the folder to which each of several processes writes its counts. Set by their parent."""


async def write_periodically() -> None:
    """Write the counts of this process for its siblings until cancelled. Returns if there are no siblings."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    try:
        while True:
            await asyncio.sleep(WRITE_EVERY)
            write_snapshot(Path(folder))
    finally:
        write_snapshot(Path(folder))


def write_snapshot(folder: Path) -> None:
    file = folder / f"{os.getpid()}.json"
    with suppress(OSError):  # a full disk may cost a count, never an event
        new = file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(TALLY.snapshot()))
        new.replace(file)


def combined_tally() -> Tally:
    """Return the sum of this process's counts and those of its siblings, including siblings that died."""
    combined = Tally()
    combined.add(TALLY.snapshot())
    folder = os.environ.get(FOLDER)
    for file in Path(folder).glob("*.json") if folder else ():
        if file.stem != str(os.getpid()):
            with suppress(OSError, msgspec.MsgspecError):
                combined.add(msgspec.json.decode(file.read_bytes(), type=Snapshot))
    return combined
