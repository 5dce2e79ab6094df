"""What this process has seen at its door since it started: how long acks took, and what was refused.

A delivery that is refused leaves no row: it is counted here, and how many there were is written from here now and then.
Senders choose neither the sources nor the reasons here, so the memory is bounded.
"""

from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime

from oncehook.clock import SYSTEM, Clock

LATENCIES = 4096
"""How many of the last acks percentiles are of."""

MINUTES = 24 * 60
"""How long refusals are counted by the minute."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The last delivery of a source that was refused."""

    at: datetime
    reason: str
    detail: str


class Meter:
    """Counts of one process. `acked` is on the door's way: it appends, and nothing else."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.started = clock.datetime()
        self.acked: deque[tuple[str, float]] = deque(maxlen=LATENCIES)
        self.last_refused: dict[str, Refusal] = {}
        self.unwritten: Counter[tuple[str, str]] = Counter()  # refusals that the database does not know of yet
        self._minutes: dict[int, Counter[tuple[str, str]]] = {}

    def refused(self, source: str, reason: str, detail: str) -> None:
        """Count a refusal. `source` is a configured one, or "unknown"."""
        now = self.clock.datetime()
        self.last_refused[source] = Refusal(now, reason, detail)
        minute = int(now.timestamp()) // 60
        if minute not in self._minutes:
            self._minutes[minute] = Counter()
            for old in [one for one in self._minutes if one <= minute - MINUTES]:
                del self._minutes[old]
        self._minutes[minute][source, reason] += 1
        self.unwritten[source, reason] += 1

    def refusals(self, since: float) -> list[tuple[int, str, str, int]]:
        """(second of the minute's start, source, reason, count), of minutes that had any."""
        return [
            (minute * 60, source, reason, number)
            for minute, counts in self._minutes.items()
            if minute * 60 >= since - 60
            for (source, reason), number in counts.items()
        ]

    def percentiles(self, source: str | None = None) -> dict[str, float] | None:
        """Seconds within which 50, 95 and 99 of a hundred deliveries were acked; None before the first."""
        seconds = sorted(took for name, took in list(self.acked) if source is None or name == source)
        if not seconds:
            return None
        return {f"p{part}": seconds[min(len(seconds) - 1, len(seconds) * part // 100)] for part in (50, 95, 99)}
