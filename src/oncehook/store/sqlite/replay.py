"""SQLite's side of replays, and of what a person asks about the work."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncehook.model.receipt import Receipt, rfc3339
from oncehook.providers.expressions import moment
from oncehook.store import queries
from oncehook.store.rows import Selection
from oncehook.store.sqlite.work import SqliteWork

NO_LIMIT = 2**62


class SqliteReplay(SqliteWork):
    """The verbs of replays."""

    async def now(self) -> datetime:
        found = moment((await self.read(self.sql["replay_now"], {}))[0][0])
        assert found is not None
        return found

    async def select(self, selection: Selection, *, after: int, limit: int) -> list[tuple[Receipt, bool]]:
        from oncehook.store.sqlite.store import _receipt  # the module of the class that is made of this one

        given = _given(selection) | {"after": after, "limit": limit}
        page = queries.with_given(self.sql["replay_page"], set(given))
        rows: list[Any] = [dict(row) for row in await self.read(page, given)]
        kept = [bool(row.pop("kept")) for row in rows]
        return list(zip(map(_receipt, rows), kept, strict=True))

    async def count_selected(self, selection: Selection) -> list[dict[str, Any]]:
        given = _given(selection) | {"after": selection.after, "limit": NO_LIMIT}
        page = queries.with_given(self.sql["replay_page"], set(given))
        return [dict(row) for row in await self.read(self.sql["replay_counts"].replace("{page}", page), given)]

    async def replay(
        self, receipts: Sequence[int], actor: str, detail: dict[str, Any], *, action: str = "replay"
    ) -> list[int]:
        return await self._move(("keep_attempts", "replay"), receipts, actor, action, detail)

    async def retry_now(self, receipts: Sequence[int], actor: str, detail: dict[str, Any]) -> list[int]:
        return await self._move(("retry_now",), receipts, actor, "retry", detail)

    async def _move(
        self, statements: Sequence[str], receipts: Sequence[int], actor: str, action: str, detail: dict[str, Any]
    ) -> list[int]:
        """Run the statements, the last of which returns the receipts that moved, and record who asked."""

        def move(connection: sqlite3.Connection) -> list[int]:
            chosen = {"receipts": json.dumps(receipts)}
            connection.execute("BEGIN IMMEDIATE")
            for name in statements[:-1]:
                connection.execute(self.sql[name], chosen)
            moved = sorted(row[0] for row in connection.execute(self.sql[statements[-1]], chosen))
            if moved:
                told = json.dumps({**detail, "count": len(moved), "receipts": moved})
                connection.execute(self.sql["audit"], {"actor": actor, "action": action, "detail": told})
            connection.execute("COMMIT")
            return moved

        return await self.write(move)

    async def replays(self, receipt: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["audited_replays"], {"receipt": receipt})]

    async def run_outcomes(self, run: str) -> dict[str, int]:
        rows = await self.read(self.sql["run_outcomes"], {"run": run})
        return {row["status"]: row["receipts"] for row in rows}

    async def dead(self, limit: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.read(self.sql["dead"], {"limit": limit})]

    async def lags(self) -> dict[str, float]:
        return {row["source"]: row["lag"] for row in await self.read(self.sql["lags"], {})}


def _given(selection: Selection) -> dict[str, Any]:
    from oncehook.store.sqlite.store import _parameters  # as above

    given = {
        "receipts": None if selection.receipts is None else json.dumps(selection.receipts),
        "handled_by": selection.handled_by,
        "horizon": rfc3339(selection.horizon),
    }
    return _parameters(selection.wanted, None) | {name: value for name, value in given.items() if value is not None}
