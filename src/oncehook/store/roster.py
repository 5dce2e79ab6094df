"""The roster in the database: which processes handle what, and receipts that none of them handles."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from oncehook.model.patterns import Handled
from oncehook.model.rows import LiveHandler, Unhandled, WaitingType
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import Position, Type


class Roster:
    """Implements `RosterStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._dialect = executor.dialect

    async def register(self, worker: str, handled: Handled) -> None:
        given = {"worker": worker, "handlers": json.dumps(registered(handled, self._dialect.pattern))}

        async def work(run: Run) -> None:
            for name in ("forget_handlers", "forget_workers", "register_worker", "register_handlers"):
                await run(name, given)

        await self._executor.transaction(work)

    async def seen(self, worker: str) -> bool:
        return bool(await self._executor.write("worker_seen", {"worker": worker}))

    async def live_handlers(self) -> list[LiveHandler]:
        return decode(await self._executor.read("live_handlers"), LiveHandler)

    async def waiting_types(
        self, after: Position | None, size: int, *, serial: bool
    ) -> tuple[list[Type], Position | None, bool]:
        name = "waiting_serial_types" if serial else "waiting_types"
        rows = decode(await self._executor.read(name, self._from(after, serial) | {"size": size}), WaitingType)
        ends: list[Position] = [(row.source, row.last) if serial else (row.last,) for row in rows]
        is_full = sum(row.number for row in rows) >= size
        return [(row.source, row.type) for row in rows], max(ends, default=None), is_full

    async def set_apart(
        self, types: Sequence[Type], after: Position | None, last: Position, size: int, *, serial: bool
    ) -> Counter[Type]:
        given = self._from(after, serial) | {"types": types_json(types), "size": size}
        given |= dict(zip(("last_source", "last_key"), last, strict=True)) if serial else {"last": last[0]}
        rows = await self._executor.write("set_apart_serial" if serial else "set_apart", given)
        return Counter((row["source"], row["type"]) for row in rows)

    async def unhandled_types(self, most: int) -> list[Type]:
        rows = await self._executor.read("unhandled_types", {"most": most})
        return [(row["source"], row["type"]) for row in rows]

    async def take_up(self, type_: Type, size: int) -> int:
        return len(await self._executor.write("take_up", {"source": type_[0], "type": type_[1], "size": size}))

    async def ignore_unhandled(self, type_: Type, reason: str, seconds: float, size: int) -> int:
        given = {"source": type_[0], "type": type_[1], "reason": reason, "seconds": seconds, "size": size}
        return len(await self._executor.write("ignore_unhandled", given))

    async def unhandled(self) -> dict[str, Unhandled]:
        return {row.source: row for row in decode(await self._executor.read("unhandled"), Unhandled)}

    def _from(self, after: Position | None, serial: bool) -> dict[str, Any]:
        """Where a window begins."""
        if serial:
            return dict(zip(("source", "key"), after or ("", ""), strict=True))
        return {"after": after[0] if after else self._dialect.earliest}


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
