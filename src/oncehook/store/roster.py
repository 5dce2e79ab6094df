"""The roster in the database: live processes with their patterns, and receipts that none of them handles."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oncehook.model.patterns import Handled
from oncehook.model.rows import LiveHandler, Unhandled, WaitingType
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import EventType, Window, WindowPosition


class SqlRosterStore:
    """Implements `RosterStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._dialect = executor.dialect

    async def register(self, worker: str, handled: Mapping[str, Handled]) -> None:
        rows = [row for name, of_consumer in handled.items() for row in self._rows(name, of_consumer)]
        parameters = {"worker": worker, "handlers": json.dumps(rows)}

        async def work(run: Run) -> None:
            for name in ("remove_handlers", "remove_workers", "register_worker", "register_handlers"):
                await run(name, parameters)

        await self._executor.transaction(work)

    def _rows(self, consumer: str, handled: Handled) -> list[dict[str, Any]]:
        return [{"consumer": consumer, **row} for row in handler_rows(handled, self._dialect.pattern)]

    async def renew(self, worker: str) -> bool:
        return bool(await self._executor.write("renew_worker", {"worker": worker}))

    async def live_handlers(self) -> list[LiveHandler]:
        return decode(await self._executor.read("live_handlers"), LiveHandler)

    async def waiting_types(
        self, consumer: str, after: WindowPosition | None, size: int, *, serial: bool
    ) -> tuple[list[EventType], WindowPosition | None, bool]:
        name = "waiting_serial_types" if serial else "waiting_types"
        parameters = self._window_start(after, serial) | {"consumer": consumer, "size": size}
        rows = decode(await self._executor.read(name, parameters), WaitingType)
        ends: list[WindowPosition] = [(row.source, row.last) if serial else (row.last,) for row in rows]
        is_full = sum(row.number for row in rows) >= size
        return [(row.source, row.type) for row in rows], max(ends, default=None), is_full

    async def hold_unhandled(
        self, consumer: str, types: Sequence[EventType], window: Window, size: int, *, serial: bool
    ) -> Counter[EventType]:
        after, last = window
        parameters = self._window_start(after, serial) | {
            "types": types_json(types),
            "size": size,
            "consumer": consumer,
        }
        parameters |= dict(zip(("last_source", "last_key"), last, strict=True)) if serial else {"last": last[0]}
        rows = await self._executor.write("hold_unhandled_serial" if serial else "hold_unhandled", parameters)
        return Counter((row["source"], row["type"]) for row in rows)

    async def unhandled_types(self, consumer: str, most: int) -> list[EventType]:
        rows = await self._executor.read("unhandled_types", {"consumer": consumer, "most": most})
        return [(row["source"], row["type"]) for row in rows]

    async def release_unhandled(self, consumer: str, type_: EventType, size: int) -> int:
        parameters = {"consumer": consumer, "source": type_[0], "type": type_[1], "size": size}
        return len(await self._executor.write("release_unhandled", parameters))

    async def ignore_unhandled(self, consumer: str, type_: EventType, reason: str, *, seconds: float, size: int) -> int:
        chosen = {"consumer": consumer, "source": type_[0], "type": type_[1]}
        parameters = {**chosen, "reason": reason, "seconds": seconds, "size": size}
        return len(await self._executor.write("ignore_unhandled", parameters))

    async def unhandled(self) -> list[Unhandled]:
        return decode(await self._executor.read("unhandled"), Unhandled)

    def _window_start(self, after: WindowPosition | None, serial: bool) -> dict[str, Any]:
        """Return the parameters for the start of a window."""
        if serial:
            return dict(zip(("source", "key"), after or ("", ""), strict=True))
        return {"after": after[0] if after else self._dialect.earliest}


def handler_rows(handled: Handled, notation: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return the rows of a process's patterns. Where a handler handles all types, the projection needs no row."""
    rows = dict.fromkeys(handled.patterns, False)
    for source in handled.projected:
        rows.setdefault((source, "*"), True)
    return [
        {"source": source, "pattern": pattern, "matcher": notation(pattern), "is_projection": is_projection}
        for (source, pattern), is_projection in rows.items()
    ]


def types_json(types: Sequence[EventType]) -> str:
    """Encode types for a statement."""
    return json.dumps([{"source": source, "type": type_} for source, type_ in types])
