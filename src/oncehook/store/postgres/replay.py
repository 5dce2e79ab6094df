"""PostgreSQL's side of replays, and of what a person asks about the work."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncehook.model.receipt import Receipt, State
from oncehook.store import queries
from oncehook.store.postgres.dialect import array
from oncehook.store.postgres.pool import plain
from oncehook.store.postgres.work import PostgresWork
from oncehook.store.rows import Selection

NO_LIMIT = 2**62
LOOK_SECONDS = 600.0
"""How long a look through the whole ledger may take: a person waits for it, no sender does."""


class PostgresReplay(PostgresWork):
    """The verbs of replays."""

    async def now(self) -> datetime:
        found: datetime = (await self.read(self.sql["replay_now"], {}))[0][0]
        return found

    async def select(self, selection: Selection, *, after: int, limit: int) -> list[tuple[Receipt, bool]]:
        given = _given(selection) | {"after": after, "limit": limit}
        rows = map(dict, await self._look(queries.with_given(self.sql["replay_page"], set(given)), given))
        return [
            (Receipt(**{k: v for k, v in row.items() if k != "kept"} | {"status": State(row["status"])}), row["kept"])
            for row in rows
        ]

    async def count_selected(self, selection: Selection) -> list[dict[str, Any]]:
        given = _given(selection) | {"after": selection.after, "limit": NO_LIMIT}
        page = queries.with_given(self.sql["replay_page"], set(given))
        return [dict(row) for row in await self._look(self.sql["replay_counts"].replace("{page}", page), given)]

    async def replay(
        self, receipts: Sequence[int], actor: str, detail: dict[str, Any], *, action: str = "replay"
    ) -> list[int]:
        return await self._move("replay", receipts, actor, action, detail)

    async def retry_now(self, receipts: Sequence[int], actor: str, detail: dict[str, Any]) -> list[int]:
        return await self._move("retry_now", receipts, actor, "retry", detail)

    async def _move(
        self, statement: str, receipts: Sequence[int], actor: str, action: str, detail: dict[str, Any]
    ) -> list[int]:
        """Run the statement, which returns the receipts that moved, and record who asked."""
        move, _ = queries.numbered(self.sql[statement])
        audit, _ = queries.numbered(self.sql["audit"])
        async with self.connection() as connection, connection.transaction():
            moved = sorted(row[0] for row in await connection.fetch(move, array(receipts)))
            if moved:
                told = json.dumps({**detail, "count": len(moved), "receipts": moved})
                await connection.execute(audit, actor, action, told)
        return moved

    async def replays(self, receipt: int) -> list[dict[str, Any]]:
        return [plain(row) for row in await self._look(self.sql["audited_replays"], {"receipt": receipt})]

    async def run_outcomes(self, run: str) -> dict[str, int]:
        rows = await self._look(self.sql["run_outcomes"], {"run": run})
        return {row["status"]: row["receipts"] for row in rows}

    async def dead(self, limit: int) -> list[dict[str, Any]]:
        return [plain(row) for row in await self._look(self.sql["dead"], {"limit": limit})]

    async def lags(self) -> dict[str, float]:
        return {row["source"]: row["lag"] for row in await self._look(self.sql["lags"], {})}

    async def _look(self, sql: str, parameters: dict[str, Any]) -> list[Any]:
        text, names = queries.numbered(sql)
        async with self.connection() as connection:
            return list(await connection.fetch(text, *(parameters[name] for name in names), timeout=LOOK_SECONDS))


def _given(selection: Selection) -> dict[str, Any]:
    from oncehook.store.postgres.store import _parameters  # the module of the class that is made of this one

    given = {
        "receipts": None if selection.receipts is None else array(selection.receipts),
        "handled_by": selection.handled_by,
        "horizon": selection.horizon,
    }
    return _parameters(selection.wanted, None) | {name: value for name, value in given.items() if value is not None}
