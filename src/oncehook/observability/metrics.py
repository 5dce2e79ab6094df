"""What is counted: every metric, in one table. Counting is on the hot path, so it is plain integers in this process.

Several processes that serve one socket each write what they counted to a folder once a second; the one that is scraped
adds the others' to its own. The file of a process that died stays, so no counter ever goes back.
"""

import asyncio
import os
from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import msgspec

METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "oncehook_received_total": ("counter", ("source",), "First deliveries that were accepted."),
    "oncehook_duplicates_total": ("counter", ("source",), "Deliveries of events that were here before."),
    "oncehook_rejected_total": ("counter", ("source", "reason"), "Deliveries that were refused."),
    "oncehook_accept_seconds": ("histogram", ("source",), "From the request to its answer, of what was taken."),
    "oncehook_processed_total": ("counter", ("source", "outcome"), "Attempts that ended, by what came of them."),
    "oncehook_handle_seconds": ("histogram", ("source", "handler"), "How long a handler took."),
    "oncehook_stale_total": ("counter", ("source",), "Old news that was kept from overwriting new."),
    "oncehook_effect_conflicts_total": ("counter", ("source",), "Effects that were asked for again and not repeated."),
    "oncehook_oldest_unfinished_seconds": (
        "gauge",
        ("source",),
        "Age of the oldest event that is not finished, whether it waits or a worker holds it; since its last replay.",
    ),
    "oncehook_lag_seconds": (
        "gauge",
        ("source",),
        "For how long the oldest event that is due has waited for a worker; events that a worker holds do not count.",
    ),
    "oncehook_unhandled": ("gauge", ("source",), "Events that wait and that no process has a handler for."),
    "oncehook_paused": ("gauge", ("source",), "1 while a source is paused, else 0."),
    "oncehook_receipts": ("gauge", ("source", "state"), "Receipts by state."),
    "oncehook_effects": ("gauge", ("state",), "Effects by state."),
}
"""Name → (kind, labels, meaning). docs/metrics.md is made of this table. No label's value comes from a sender."""

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
        "unavailable",
    ),
}
"""Label → its values, for series that exist before anything is counted."""

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WRITE_EVERY = 1.0

Key = tuple[str, ...]  # the metric's name and its labels' values


class Histogram(msgspec.Struct):
    """How many observations fell below each bound and above the last, and their sum."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum: float = 0.0

    def add(self, other: "Histogram") -> None:
        self.counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class Snapshot(msgspec.Struct):
    """What one process has counted, as it is written to its file."""

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
        """The same, for whoever has the key at hand."""
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
"""What this process has counted. Like its log, it is one for the process."""

count = TALLY.count
observe = TALLY.observe
observe_key = TALLY.observe_key


# -- several processes ----------------------------------------------------------------------------------------------

FOLDER = "ONCEHOOK_METRICS_FOLDER"
"""Set by the parent of several processes: where each leaves what it counted."""


async def keep_writing() -> None:
    """Leave what this process has counted for its siblings, until cancelled. Nothing to do where there are none."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    try:
        while True:
            await asyncio.sleep(WRITE_EVERY)
            write(Path(folder))
    finally:
        write(Path(folder))


def write(folder: Path) -> None:
    file = folder / f"{os.getpid()}.json"
    with suppress(OSError):  # a full disk costs a figure, not an event
        new = file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(TALLY.snapshot()))
        new.replace(file)


def together() -> Tally:
    """The counts of this process and of its siblings, living and dead."""
    whole = Tally()
    whole.add(TALLY.snapshot())
    folder = os.environ.get(FOLDER)
    for file in Path(folder).glob("*.json") if folder else ():
        if file.stem != str(os.getpid()):
            with suppress(OSError, msgspec.MsgspecError):
                whole.add(msgspec.json.decode(file.read_bytes(), type=Snapshot))
    return whole
