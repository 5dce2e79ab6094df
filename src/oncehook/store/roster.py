"""The roster in the database: live processes with their patterns, and receipts that none of them handles."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from oncehook.model.patterns import Handled
from oncehook.model.rows import LiveHandler, Unhandled, WaitingType
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import EventType, WindowPosition


class SqlRosterStore:
    """Implements `RosterStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._dialect = executor.dialect

    async def register(self, worker: str, handled: Handled) -> None:
        parameters = {"worker": worker, "handlers": json.dumps(handler_rows(handled, self._dialect.pattern))}

        async def work(run: Run) -> None:
            for name in ("remove_handlers", "remove_workers", "register_worker", "register_handlers"):
                await run(name, parameters)

        await self._executor.transaction(work)

    async def renew(self, worker: str) -> bool:
        return bool(await self._executor.write("renew_worker", {"worker": worker}))

    async def live_handlers(self) -> list[LiveHandler]:
        return decode(await self._executor.read("live_handlers"), LiveHandler)

    async def waiting_types(
        self, after: WindowPosition | None, size: int, *, serial: bool
    ) -> tuple[list[EventType], WindowPosition | None, bool]:
        name = "waiting_serial_types" if serial else "waiting_types"
        rows = decode(await self._executor.read(name, self._window_start(after, serial) | {"size": size}), WaitingType)
        ends: list[WindowPosition] = [(row.source, row.last) if serial else (row.last,) for row in rows]
        is_full = sum(row.number for row in rows) >= size
        return [(row.source, row.type) for row in rows], max(ends, default=None), is_full

    async def hold_unhandled(
        self, types: Sequence[EventType], after: WindowPosition | None, last: WindowPosition, size: int, *, serial: bool
    ) -> Counter[EventType]:
        parameters = self._window_start(after, serial) | {"types": types_json(types), "size": size}
        parameters |= dict(zip(("last_source", "last_key"), last, strict=True)) if serial else {"last": last[0]}
        rows = await self._executor.write("hold_unhandled_serial" if serial else "hold_unhandled", parameters)
        return Counter((row["source"], row["type"]) for row in rows)

    async def unhandled_types(self, most: int) -> list[EventType]:
        rows = await self._executor.read("unhandled_types", {"most": most})
        return [(row["source"], row["type"]) for row in rows]

    async def release_unhandled(self, type_: EventType, size: int) -> int:
        return len(
            await self._executor.write("release_unhandled", {"source": type_[0], "type": type_[1], "size": size})
        )

    async def ignore_unhandled(self, type_: EventType, reason: str, seconds: float, size: int) -> int:
        parameters = {"source": type_[0], "type": type_[1], "reason": reason, "seconds": seconds, "size": size}
        return len(await self._executor.write("ignore_unhandled", parameters))

    async def unhandled(self) -> dict[str, Unhandled]:
        return {row.source: row for row in decode(await self._executor.read("unhandled"), Unhandled)}

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
