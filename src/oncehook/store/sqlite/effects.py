"""SQLite's side of effects and entities."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from oncehook.model.receipt import EffectFilter, LeasedEffect, SettledEffect
from oncehook.store import queries
from oncehook.store.rows import EffectTarget
from oncehook.store.sqlite.prune import SqlitePrune

_encode = msgspec.json.Encoder().encode


class SqliteEffects(SqlitePrune):
    """The verbs of the relay, and of what a person asks about effects."""

    async def lease_effects(
        self, limit: int, worker: str, targets: Sequence[EffectTarget], *, rescued: bool = False
    ) -> list[LeasedEffect]:
        given = {"limit": limit, "worker": worker, "targets": _encode(targets).decode(), "rescued": rescued}

        def lease(connection: sqlite3.Connection) -> list[LeasedEffect]:
            connection.execute("BEGIN IMMEDIATE")
            cursor = connection.execute(self.sql["lease_effects"], given)
            names = [column[0] for column in cursor.description]
            leased = [LeasedEffect(**dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
            connection.execute("COMMIT" if leased else "ROLLBACK")
            return sorted(leased, key=lambda effect: effect.id)

        return await self._write(lease)

    async def settle_effects(self, settled: Sequence[SettledEffect]) -> set[int]:
        def settle(connection: sqlite3.Connection) -> set[int]:
            connection.execute("BEGIN IMMEDIATE")
            rows = connection.execute(self.sql["settle_effects"], {"given": _encode(settled).decode()}).fetchall()
            connection.execute("COMMIT")
            return {row[0] for row in rows}

        return await self._write(settle)

    async def expired_effects(self, limit: int, after: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._read(self.sql["expired_effects"], {"limit": limit, "after": after})]

    async def recorded_effect(self, scope: str, key: str) -> int | None:
        given = json.dumps([{"scope": scope, "key": key}])
        rows = await self._read(self.sql["recorded_effects"], {"given": given})
        return rows[0]["receipt_id"] if rows else None

    async def entity(self, scope: str, kind: str, id: str) -> tuple[Any, ...] | None:
        given = json.dumps({"scope": scope, "kind": kind, "id": id})
        rows = await self._read(self.sql["entity"], {"given": given})
        return tuple(rows[0]) if rows else None

    # -- looking --------------------------------------------------------------------------------------------------

    async def find_effects(
        self, wanted: EffectFilter, *, limit: int, before: int | None = None, down_to: int | None = None
    ) -> list[dict[str, Any]]:
        given = _given(wanted, before) | ({} if down_to is None else {"down_to": down_to})
        sql = queries.with_given(self.sql["find_effects"], set(given))
        return [dict(row) for row in await self._read(sql, {**given, "limit": limit})]

    async def noops(self, receipt: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._read(self.sql["noops"], {"receipt": receipt})]

    async def effect_counts(self) -> dict[str, int]:
        return {row["status"]: row["effects"] for row in await self._read(self.sql["effect_counts"], {})}

    async def effect_standing(self, most: int) -> dict[str, int]:
        rows = await self._read(self.sql["effect_standing"], {"most": most})
        return {row["status"]: row["effects"] for row in rows}

    async def failed_effects(self, wanted: EffectFilter) -> tuple[int, int]:
        given = {name: value for name in ("source", "target") if (value := getattr(wanted, name)) is not None}
        row = (await self._read(queries.with_given(self.sql["failed_effects"], set(given)), given))[0]
        return row["replayable"], row["erased"]

    async def noop_counts(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._read(self.sql["noop_counts"], {})]

    async def effects_waiting(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._read(self.sql["effects_waiting"], {})]

    async def replay_effects(self, ids: Sequence[int], actor: str) -> list[int]:
        def replay(connection: sqlite3.Connection) -> list[int]:
            connection.execute("BEGIN IMMEDIATE")
            rows = connection.execute(self.sql["replay_effects"], {"ids": json.dumps(list(ids))}).fetchall()
            moved = sorted(row[0] for row in rows)
            if moved:
                detail = json.dumps({"count": len(moved), "effects": moved})
                connection.execute(self.sql["audit"], {"actor": actor, "action": "replay effects", "detail": detail})
            connection.execute("COMMIT")
            return moved

        return await self._write(replay)


def _given(wanted: EffectFilter, before: int | None) -> dict[str, Any]:
    given = {name: getattr(wanted, name) for name in EffectFilter.__slots__}
    given["ids"] = None if wanted.ids is None else json.dumps(list(wanted.ids))
    given["before"] = before
    return {name: value for name, value in given.items() if value is not None}
