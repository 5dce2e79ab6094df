"""PostgreSQL's side of pausing a source."""

import json
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.model.patterns import Handled
from oncehook.model.timestamps import rfc3339
from oncehook.store.pauses import ENDS_ITSELF, WINDOW, Pauses, pause_detail
from oncehook.store.postgres.pool import plain
from oncehook.store.postgres.roster import PostgresRoster, handled_parameters
from oncehook.store.queries import numbered


class PostgresPause(PostgresRoster):
    """The verbs of pausing."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings, clock)
        self._pauses = Pauses(clock, "-infinity")

    async def pause(self, source: str, actor: str, *, reason: str | None = None, seconds: float | None = None) -> bool:
        return await self._change_pause("pause", source, actor, reason, seconds)

    async def resume(self, source: str, actor: str) -> bool:
        return await self._change_pause("resume", source, actor)

    async def pauses(self) -> list[dict[str, Any]]:
        return [plain(row) for row in await self.read(self.sql["pauses"], {})]

    async def _change_pause(
        self, name: str, source: str, actor: str, reason: str | None = None, seconds: float | None = None
    ) -> bool:
        given = {"source": source, "actor": actor, "reason": reason, "seconds": seconds}
        change, names = numbered(self.sql[name])
        audit, _ = numbered(self.sql["audit"])
        async with self.connection() as connection, connection.transaction():
            changed = await connection.fetch(change, *(given[name] for name in names))
            if changed:
                await connection.execute(audit, actor, name, json.dumps(pause_detail(source, reason, seconds)))
        self._pauses.forget()
        return bool(changed)

    async def _end_pauses(self) -> None:
        """Remove the pauses whose time is over, and record it."""
        audit, _ = numbered(self.sql["audit"])
        async with self.connection() as connection, connection.transaction():
            for row in await connection.fetch(self.sql["end_pauses"]):
                detail = json.dumps({"source": row["source"], "ended_at": rfc3339(row["ends_at"])})
                await connection.execute(audit, ENDS_ITSELF, "resume", detail)

    async def _look_at_pauses(self, handled: Handled | None) -> None:
        async def sources() -> list[str]:
            rows = await self.read(self.sql["pauses_looked_at"], {})
            if any(row["is_over"] for row in rows):
                await self._end_pauses()
            return [row["source"] for row in rows if not row["is_over"]]

        async def window(after: str) -> dict[str, Any]:
            return plain(
                (
                    await self.read(
                        self.sql["due_window"], {"after": after, "size": WINDOW, **handled_parameters(handled)}
                    )
                )[0]
            )

        await self._pauses.look(sources, window, handled)
