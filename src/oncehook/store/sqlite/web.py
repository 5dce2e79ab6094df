"""SQLite's side of what the dashboard asks: windows, rates, counts up to a bound, and the audit."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncehook.model.receipt import Filter, rfc3339
from oncehook.store import queries
from oncehook.store.rows import Place
from oncehook.store.sqlite.email import SqliteEmail


class SqliteWeb(SqliteEmail):
    """The verbs of the dashboard."""

    async def window_end(self, wanted: Filter, *, before: Place | None, size: int) -> Place | None:
        from oncehook.store.sqlite.store import _parameters  # the module of the class that is made of this one

        given = _parameters(Filter(since=wanted.since, until=wanted.until), before) | {"skipped": size - 1}
        rows = await self.read(queries.with_given(self.sql["window_end"], set(given)), given)
        return (rows[0]["received_at"], rows[0]["id"]) if rows else None

    async def known_sources(self) -> list[str]:
        return [row["source"] for row in await self.read(self.sql["known_sources"], {})]

    async def rates(self, since: datetime, seconds: int) -> list[dict[str, Any]]:
        rows = await self.read(self.sql["rates"], {"since": rfc3339(since), "seconds": seconds})
        return [dict(row) for row in rows]

    async def standing(self, most: int) -> dict[str, dict[str, Any]]:
        waiting = await self.read(self.sql["waiting"], {"most": most})
        dead = await self.read(self.sql["dead_letters"], {"most": most})
        last = await self.read(self.sql["last_received"], {"most": most})
        return {
            "waiting": {row["source"]: row["number"] for row in waiting},
            "dead_letters": {row["source"]: row["number"] for row in dead},
            "last_received_at": {row["source"]: row["received_at"] for row in last},
        }

    async def pulse(self) -> str:
        return "/".join(str(value) for value in tuple((await self.read(self.sql["pulse"], {}))[0]))

    async def audit(self, actor: str, action: str, detail: dict[str, Any]) -> None:
        row = {"actor": actor, "action": action, "detail": json.dumps(detail)}

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(self.sql["audit"], row)

        await self.write(write)

    async def audited(self, *, before: int | None, limit: int) -> list[dict[str, Any]]:
        given = {"limit": limit} | ({} if before is None else {"before": before})
        rows = await self.read(queries.with_given(self.sql["audited"], set(given)), given)
        return [{**dict(row), "detail": json.loads(row["detail"])} for row in rows]

    async def audited_run(self, run: str) -> Sequence[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["audited_run"], {"run": run})]
