"""PostgreSQL's side of what the dashboard asks: windows, rates, counts up to a bound, and the audit."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncehook.model.receipt import Filter, rfc3339
from oncehook.store import queries
from oncehook.store.postgres.email import PostgresEmail
from oncehook.store.postgres.pool import plain
from oncehook.store.rows import Place


class PostgresWeb(PostgresEmail):
    """The verbs of the dashboard."""

    async def window_end(self, wanted: Filter, *, before: Place | None, size: int) -> Place | None:
        from oncehook.store.postgres.store import _parameters  # the module of the class that is made of this one

        given = _parameters(Filter(since=wanted.since, until=wanted.until), before) | {"skipped": size - 1}
        rows = await self.read(queries.with_given(self.sql["window_end"], set(given)), given)
        return (rfc3339(rows[0]["received_at"]) or "", rows[0]["id"]) if rows else None

    async def known_sources(self) -> list[str]:
        return [row["source"] for row in await self.read(self.sql["known_sources"], {})]

    async def rates(self, since: datetime, seconds: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["rates"], {"since": since, "seconds": seconds})]

    async def standing(self, most: int) -> dict[str, dict[str, Any]]:
        waiting = await self.read(self.sql["waiting"], {"most": most})
        dead = await self.read(self.sql["dead_letters"], {"most": most})
        last = await self.read(self.sql["last_received"], {"most": most})
        return {
            "waiting": {row["source"]: row["number"] for row in waiting},
            "dead_letters": {row["source"]: row["number"] for row in dead},
            "last_received_at": {row["source"]: rfc3339(row["received_at"]) for row in last},
        }

    async def pulse(self) -> str:
        return "/".join(str(value) for value in (await self.read(self.sql["pulse"], {}))[0].values())

    async def audit(self, actor: str, action: str, detail: dict[str, Any]) -> None:
        row = {"actor": actor, "action": action, "detail": json.dumps(detail)}
        await self.read(self.sql["audit"], row)

    async def audited(self, *, before: int | None, limit: int) -> list[dict[str, Any]]:
        given = {"limit": limit} | ({} if before is None else {"before": before})
        rows = await self.read(queries.with_given(self.sql["audited"], set(given)), given)
        return [{**plain(row), "detail": json.loads(row["detail"])} for row in rows]

    async def audited_run(self, run: str) -> Sequence[dict[str, Any]]:
        return [plain(row) for row in await self.read(self.sql["audited_run"], {"run": run})]
