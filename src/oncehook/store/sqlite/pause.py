"""SQLite's side of pausing a source."""

import json
import sqlite3
from typing import Any

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import Settings
from oncehook.model.patterns import Handled
from oncehook.store.pauses import ENDS_ITSELF, WINDOW, Pauses, pause_detail
from oncehook.store.sqlite.roster import SqliteRoster, handled_parameters


class SqlitePause(SqliteRoster):
    """The verbs of pausing."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._pauses = Pauses(SYSTEM, "")

    async def pause(self, source: str, actor: str, *, reason: str | None = None, seconds: float | None = None) -> bool:
        return await self._change_pause("pause", source, actor, reason, seconds)

    async def resume(self, source: str, actor: str) -> bool:
        return await self._change_pause("resume", source, actor)

    async def pauses(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["pauses"], {})]

    async def _change_pause(
        self, name: str, source: str, actor: str, reason: str | None = None, seconds: float | None = None
    ) -> bool:
        note = {"actor": actor, "action": name, "detail": json.dumps(pause_detail(source, reason, seconds))}
        given = {"source": source, "actor": actor, "reason": reason, "seconds": seconds}

        def change(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            changed = connection.execute(self.sql[name], given).fetchall()
            if changed:
                connection.execute(self.sql["audit"], note)
            connection.execute("COMMIT")
            return bool(changed)

        changed = await self.write(change)
        self._pauses.forget()
        return changed

    def _end_pauses(self, connection: sqlite3.Connection) -> None:
        """Remove the pauses whose time is over, and record it."""
        connection.execute("BEGIN IMMEDIATE")
        for source, ends_at in connection.execute(self.sql["end_pauses"]).fetchall():
            detail = json.dumps({"source": source, "ended_at": ends_at})
            connection.execute(self.sql["audit"], {"actor": ENDS_ITSELF, "action": "resume", "detail": detail})
        connection.execute("COMMIT")

    async def _look_at_pauses(self, handled: Handled | None) -> None:
        async def sources() -> list[str]:
            rows = await self.read(self.sql["pauses_looked_at"], {})
            if any(row["is_over"] for row in rows):
                await self.write(self._end_pauses)
            return [row["source"] for row in rows if not row["is_over"]]

        async def window(after: str) -> Any:
            return (
                await self.read(self.sql["due_window"], {"after": after, "size": WINDOW, **handled_parameters(handled)})
            )[0]

        await self._pauses.look(sources, window, handled)
