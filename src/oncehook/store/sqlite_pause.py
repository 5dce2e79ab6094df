"""SQLite's side of pausing a source."""

import json
import sqlite3
from typing import Any

from oncehook.clock import SYSTEM
from oncehook.settings import Settings
from oncehook.store.pauses import WINDOW, Pauses
from oncehook.store.sqlite_file import SqliteFile


class SqlitePause(SqliteFile):
    """The verbs of pausing."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._pauses = Pauses(SYSTEM, "")

    async def pause(self, source: str, actor: str) -> bool:
        return await self._change_pause("pause", source, actor)

    async def resume(self, source: str, actor: str) -> bool:
        return await self._change_pause("resume", source, actor)

    async def pauses(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._read(self.sql["pauses"], {})]

    async def _change_pause(self, name: str, source: str, actor: str) -> bool:
        note = {"actor": actor, "action": name, "detail": json.dumps({"source": source})}

        def change(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            changed = connection.execute(self.sql[name], {"source": source, "actor": actor}).fetchall()
            if changed:
                connection.execute(self.sql["audit"], note)
            connection.execute("COMMIT")
            return bool(changed)

        changed = await self._write(change)
        self._pauses.forget()
        return changed

    async def _look_at_pauses(self) -> None:
        async def sources() -> list[str]:
            return [row["source"] for row in await self._read(self.sql["pauses"], {})]

        async def window(after: str) -> Any:
            return (await self._read(self.sql["due_window"], {"after": after, "size": WINDOW}))[0]

        await self._pauses.look(sources, window)
