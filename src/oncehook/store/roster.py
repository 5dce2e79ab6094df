"""The roster in the database: which processes handle what, and receipts that none of them handles."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from oncehook.model.patterns import Handled

Type = tuple[str, str]
"""(source, type)"""

Position = tuple[str, ...]
"""Where a window of waiting receipts ends: (due time,), and among receipts with a serial key (source, key)."""


class RosterStore(Protocol):
    """The verbs of the roster."""

    async def register(self, worker: str, handled: Handled) -> None:
        """Record what a process handles, in place of what it handled before. It is live for a minute."""

    async def worker_seen(self, worker: str) -> bool:
        """Keep a process live for another minute; False if it is not registered."""

    async def live_handlers(self) -> list[dict[str, Any]]:
        """What live processes handle: `worker`, `source`, `pattern`, `is_projection` and `seen_at`."""

    async def waiting_types(
        self, after: Position | None, size: int, *, serial: bool
    ) -> tuple[list[Type], Position | None, bool]:
        """The types among the next `size` due receipts, where these receipts end, and whether there are more.

        With `serial`, among receipts with a serial key, due or not, in the order of their keys.
        """

    async def set_apart(
        self, types: Sequence[Type], after: Position | None, last: Position, size: int, *, serial: bool
    ) -> Counter[Type]:
        """Have the receipts of these types in a window wait until `take_up`; how many of each type."""

    async def unhandled_types(self, most: int) -> list[Type]:
        """The types that were set apart."""

    async def take_up(self, type_: Type, size: int) -> int:
        """Have up to `size` receipts of a type leased again, the oldest first; how many there were."""

    async def ignore_unhandled(self, type_: Type, reason: str, seconds: float, size: int) -> int:
        """Finish up to `size` receipts of a type that were set apart so long ago as `ignored`; how many.

        Nothing is done if a process has registered within the last minute.
        """

    async def unhandled(self) -> dict[str, dict[str, Any]]:
        """By source: the `number` of receipts that were set apart, and `since` when the first one is."""


def registered(handled: Handled, notation: Callable[[str], str]) -> list[dict[str, Any]]:
    """The rows of a process's handlers. A source with a handler for every type needs no row for its projection."""
    rows = dict.fromkeys(handled.patterns, False)
    for source in handled.projected:
        rows.setdefault((source, "*"), True)
    return [
        {"source": source, "pattern": pattern, "matcher": notation(pattern), "is_projection": is_projection}
        for (source, pattern), is_projection in rows.items()
    ]


def types_json(types: Sequence[Type]) -> str:
    return json.dumps([{"source": source, "type": type_} for source, type_ in types])


def window_of(
    rows: Sequence[Mapping[str, Any]], size: int, *, serial: bool
) -> tuple[list[Type], Position | None, bool]:
    """The types of a window, where it ends, and whether there is more behind it."""
    types = [(row["source"], row["type"]) for row in rows]
    ends: list[Position] = [(row["source"], row["last"]) if serial else (row["last"],) for row in rows]
    return types, max(ends, default=None), sum(row["number"] for row in rows) >= size
