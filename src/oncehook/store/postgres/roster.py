"""PostgreSQL's side of the roster: which processes handle what, and receipts that none of them handles."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from oncehook.model.patterns import Handled, like, matchers
from oncehook.store.postgres.pool import plain
from oncehook.store.postgres.wake import PostgresWake
from oncehook.store.queries import numbered
from oncehook.store.roster import Position, Type, registered, types_json, window_of


def handled_parameters(handled: Handled | None) -> dict[str, Any]:
    """What the fragment `handled_here` takes; None: this process handles everything."""
    if handled is None:
        return {"handled": ["%"], "projected": []}
    return {"handled": matchers(handled, like), "projected": sorted(handled.projected)}


class PostgresRoster(PostgresWake):
    """The verbs of the roster."""

    async def register(self, worker: str, handled: Handled) -> None:
        given = {"worker": worker, "handlers": json.dumps(registered(handled, like))}
        async with self.connection() as connection, connection.transaction():
            for name in ("forget_handlers", "forget_workers", "register_worker", "register_handlers"):
                statement, names = numbered(self.sql[name])
                await connection.execute(statement, *(given[name] for name in names))

    async def worker_seen(self, worker: str) -> bool:
        return bool(await self.read(self.sql["worker_seen"], {"worker": worker}))

    async def live_handlers(self) -> list[dict[str, Any]]:
        return [plain(row) for row in await self.read(self.sql["live_handlers"], {})]

    async def waiting_types(
        self, after: Position | None, size: int, *, serial: bool
    ) -> tuple[list[Type], Position | None, bool]:
        if serial:
            source, key = after or ("", "")
            rows = await self.read(self.sql["waiting_serial_types"], {"source": source, "key": key, "size": size})
        else:
            (due,) = after or ("-infinity",)
            rows = await self.read(self.sql["waiting_types"], {"after": due, "size": size})
        return window_of([plain(row) for row in rows], size, serial=serial)

    async def set_apart(
        self, types: Sequence[Type], after: Position | None, last: Position, size: int, *, serial: bool
    ) -> Counter[Type]:
        given: dict[str, Any] = {"types": types_json(types), "size": size}
        if serial:
            (source, key), (last_source, last_key) = after or ("", ""), last
            given |= {"source": source, "key": key, "last_source": last_source, "last_key": last_key}
        else:
            given |= {"after": (after or ("-infinity",))[0], "last": last[0]}
        rows = await self.read(self.sql["set_apart_serial" if serial else "set_apart"], given)
        return Counter((row["source"], row["type"]) for row in rows)

    async def unhandled_types(self, most: int) -> list[Type]:
        return [(row["source"], row["type"]) for row in await self.read(self.sql["unhandled_types"], {"most": most})]

    async def take_up(self, type_: Type, size: int) -> int:
        given = {"source": type_[0], "type": type_[1], "size": size}
        return len(await self.read(self.sql["take_up"], given))

    async def ignore_unhandled(self, type_: Type, reason: str, seconds: float, size: int) -> int:
        given = {"source": type_[0], "type": type_[1], "reason": reason, "seconds": seconds, "size": size}
        return len(await self.read(self.sql["ignore_unhandled"], given))

    async def unhandled(self) -> dict[str, dict[str, Any]]:
        return {row["source"]: plain(row) for row in await self.read(self.sql["unhandled"], {})}
