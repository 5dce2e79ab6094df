"""SQLite's side of what is kept of refused requests, and of which secrets still verify."""

import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from oncehook.model.receipt import Rejection
from oncehook.store import queries
from oncehook.store.rows import REJECTIONS_KEPT
from oncehook.store.sqlite.prune import SqlitePrune


class SqliteRejections(SqlitePrune):
    """The verbs of rejections and secrets."""

    async def keep_rejection(self, rejection: Rejection) -> None:
        given = asdict(rejection) | {"kept": REJECTIONS_KEPT}

        def keep(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(self.sql["keep_rejection"], given)
            connection.execute(self.sql["trim_rejections"], given)
            connection.execute("COMMIT")

        await self.write(keep)

    async def rejections(self, source: str | None = None, *, limit: int = 20) -> list[dict[str, Any]]:
        given = {"limit": limit} | ({} if source is None else {"source": source})
        return [dict(row) for row in await self.read(queries.with_given(self.sql["rejections"], set(given)), given)]

    async def note_secrets(self, used: Mapping[tuple[str, str], int]) -> None:
        rows = [{"source": s, "secret": secret, "verified": n} for (s, secret), n in sorted(used.items())]

        def note(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(self.sql["note_secret"], rows)
            connection.execute("COMMIT")

        await self.write(note)

    async def secrets_used(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["secrets_used"], {})]
