"""SQLite's side of the roster: which processes handle what, and receipts that none of them handles."""

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

from oncehook.model.patterns import Handled, glob, matchers
from oncehook.store.roster import Position, Type, registered, types_json, window_of
from oncehook.store.sqlite.file import SqliteFile


def handled_parameters(handled: Handled | None) -> dict[str, Any]:
    """What the fragment `handled_here` takes; None: this process handles everything."""
    if handled is None:
        return {"handled": '["*"]', "projected": "[]"}
    return {"handled": json.dumps(matchers(handled, glob)), "projected": json.dumps(sorted(handled.projected))}


class SqliteRoster(SqliteFile):
    """The verbs of the roster."""

    async def register(self, worker: str, handled: Handled) -> None:
        given = {"worker": worker, "handlers": json.dumps(registered(handled, glob))}

        def register(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            for name in ("forget_handlers", "forget_workers", "register_worker", "register_handlers"):
                connection.execute(self.sql[name], given)
            connection.execute("COMMIT")

        await self.write(register)

    async def worker_seen(self, worker: str) -> bool:
        return bool(await self._change("worker_seen", {"worker": worker}))

    async def live_handlers(self) -> list[dict[str, Any]]:
        rows = [dict(row) for row in await self.read(self.sql["live_handlers"], {})]
        return [{**row, "is_projection": bool(row["is_projection"])} for row in rows]

    async def waiting_types(
        self, after: Position | None, size: int, *, serial: bool
    ) -> tuple[list[Type], Position | None, bool]:
        if serial:
            source, key = after or ("", "")
            rows = await self.read(self.sql["waiting_serial_types"], {"source": source, "key": key, "size": size})
        else:
            (due,) = after or ("",)
            rows = await self.read(self.sql["waiting_types"], {"after": due, "size": size})
        return window_of([dict(row) for row in rows], size, serial=serial)

    async def set_apart(
        self, types: Sequence[Type], after: Position | None, last: Position, size: int, *, serial: bool
    ) -> Counter[Type]:
        given: dict[str, Any] = {"types": types_json(types), "size": size}
        if serial:
            (source, key), (last_source, last_key) = after or ("", ""), last
            given |= {"source": source, "key": key, "last_source": last_source, "last_key": last_key}
        else:
            given |= {"after": (after or ("",))[0], "last": last[0]}
        rows = await self._change("set_apart_serial" if serial else "set_apart", given)
        return Counter((row[0], row[1]) for row in rows)

    async def unhandled_types(self, most: int) -> list[Type]:
        return [(row["source"], row["type"]) for row in await self.read(self.sql["unhandled_types"], {"most": most})]

    async def take_up(self, type_: Type, size: int) -> int:
        return len(await self._change("take_up", {"source": type_[0], "type": type_[1], "size": size}))

    async def ignore_unhandled(self, type_: Type, reason: str, seconds: float, size: int) -> int:
        given = {"source": type_[0], "type": type_[1], "reason": reason, "seconds": seconds, "size": size}
        return len(await self._change("ignore_unhandled", given))

    async def unhandled(self) -> dict[str, dict[str, Any]]:
        return {row["source"]: dict(row) for row in await self.read(self.sql["unhandled"], {})}

    async def _change(self, name: str, given: dict[str, Any]) -> list[Any]:
        return await self.write(lambda connection: connection.execute(self.sql[name], given).fetchall())
