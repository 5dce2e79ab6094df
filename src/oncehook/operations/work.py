"""The unfinished and failed work by source and consumer: receipts that wait, have no handler or are dead letters."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from oncehook.model.event import MAIN
from oncehook.store.store import Store

Part = tuple[str, str]
"""(source, consumer)"""


@dataclass(frozen=True, slots=True)
class Work:
    """How much work each consumer has of each source. An event is counted once for each of its consumers."""

    unhandled: Counter[Part]
    lags: dict[Part, float]
    ages: dict[Part, float]  # of the oldest unfinished event
    waiting: Counter[Part] = field(default_factory=Counter)
    dead_letters: Counter[Part] = field(default_factory=Counter)

    def figures(self, *, source: str | None = None, consumer: str | None = None) -> dict[str, Any]:
        """The figures of a source, of a consumer, or of all: numbers are added up, and of times the longest counts."""

        def chosen(parts: Iterable[Part]) -> list[Part]:
            return [part for part in parts if source in (None, part[0]) and consumer in (None, part[1])]

        def longest(seconds: dict[Part, float]) -> float:
            return round(max([0.0, *(seconds[part] for part in chosen(seconds))]), 3)

        counts = {"waiting": self.waiting, "unhandled": self.unhandled, "dead_letters": self.dead_letters}
        return {
            **{name: sum(count[part] for part in chosen(count)) for name, count in counts.items()},
            "lag_seconds": longest(self.lags),
            "oldest_unfinished_seconds": longest(self.ages),
        }

    @property
    def named_consumers(self) -> set[str]:
        """The consumers other than `main` that have such work."""
        parts = (*self.waiting, *self.unhandled, *self.dead_letters, *self.lags, *self.ages)
        return {consumer for _, consumer in parts} - {MAIN}


async def read_work(store: Store, most: int) -> tuple[Work, dict[str, str]]:
    """Return the work, counted from up to `most` rows each, and when the newest event of each source arrived."""
    totals, open_work = await store.stats.source_totals(most), await read_open_work(store)
    work = replace(
        open_work,
        waiting=Counter({(row.source, row.consumer): row.number for row in totals.waiting}),
        dead_letters=Counter({(row.source, row.consumer): row.number for row in totals.dead_letters}),
    )
    return work, totals.last_received_at


async def read_open_work(store: Store) -> Work:
    """Return the work without the numbers of waiting receipts and dead letters."""
    ages = await store.alerts.measure("oldest_unfinished", {})
    return Work(
        unhandled=Counter({(row.source, row.consumer): row.number for row in await store.roster.unhandled()}),
        lags={(row.source, row.consumer): row.lag for row in await store.stats.lags()},
        ages={(row.source, row.consumer): row.value for row in ages},
    )
