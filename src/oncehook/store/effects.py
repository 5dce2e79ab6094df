"""Effects and entities: the operations of the relay, and queries for operators."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from oncehook.model import effect as model
from oncehook.model.effect import EffectFilter, LeasedEffect, SettledEffect
from oncehook.model.lease import Leased
from oncehook.store.decode import decode
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import EffectTarget

LEASED_COLUMNS = tuple(field.name for field in msgspec.structs.fields(LeasedEffect) if field.required)
"""The columns of `lease_effects`, in their order."""


class SqlEffectStore:
    """Implements `EffectStore` on every database."""

    def __init__(self, executor: Executor, encryption: Encryption) -> None:
        self._executor = executor
        self._encryption = encryption
        self._dialect = executor.dialect

    async def lease(
        self, limit: int, worker: str, targets: Sequence[EffectTarget], *, rescued: bool = False
    ) -> list[LeasedEffect]:
        parameters = {"limit": limit, "worker": worker, "targets": self._dialect.json(targets), "rescued": rescued}
        rows = await self._executor.write("lease_effects", parameters)
        leased = [
            self._encryption.open_effect(LeasedEffect(**dict(zip(LEASED_COLUMNS, row, strict=True)))) for row in rows
        ]
        return sorted(leased, key=lambda effect: effect.id)

    async def settle(self, settled: Sequence[SettledEffect]) -> set[int]:
        return {row[0] for row in await self._executor.write("settle_effects", {"input": self._dialect.json(settled)})}

    async def expired(self, limit: int, after: int) -> list[model.ExpiredEffect]:
        return decode(
            await self._executor.read("expired_effects", {"limit": limit, "after": after}), model.ExpiredEffect
        )

    async def recorded_by(self, scope: str, key: str) -> int | None:
        rows = await self._executor.read("existing_effects", {"input": json.dumps([{"scope": scope, "key": key}])})
        return rows[0]["receipt_id"] if rows else None

    async def entity(self, scope: str, kind: str, id: str) -> model.EntityState | None:
        parameters = json.dumps({"scope": scope, "kind": kind, "id": id})
        rows = decode(await self._executor.read("entity", {"input": parameters}), model.EntityState)
        return rows[0] if rows else None

    async def find(
        self, filter: EffectFilter, *, limit: int, before: int | None = None, down_to: int | None = None
    ) -> list[model.StoredEffect]:
        parameters = {name: getattr(filter, name) for name in EffectFilter.__slots__}
        parameters["ids"] = None if filter.ids is None else self._dialect.array(filter.ids)
        parameters |= {"before": before, "down_to": down_to, "limit": limit}
        rows = decode(await self._executor.scan("find_effects", _without_none(parameters)), model.StoredEffect)
        return [self._encryption.open_stored_effect(row) for row in rows]

    def args_to_store(self, leased: Leased, scope: str, key: str, args: str) -> str:
        return self._encryption.seal_args(scope, key, args) if leased.is_encrypted else args

    async def noops(self, receipt: int) -> list[model.StoredNoop]:
        return decode(await self._executor.read("receipt_noops", {"receipt": receipt}), model.StoredNoop)

    async def noop_counts(self) -> list[model.NoopCount]:
        return decode(await self._executor.scan("noop_counts"), model.NoopCount)

    async def counts(self) -> dict[str, int]:
        return {row["status"]: row["effects"] for row in await self._executor.scan("effect_counts")}

    async def bounded_counts(self, most: int) -> dict[str, int]:
        return {
            row["status"]: row["effects"] for row in await self._executor.scan("bounded_effect_counts", {"most": most})
        }

    async def count_failed(self, filter: EffectFilter) -> tuple[int, int]:
        parameters = _without_none({"source": filter.source, "target": filter.target})
        row = (await self._executor.scan("failed_effect_totals", parameters))[0]
        return row["replayable"], row["erased"]

    async def waiting(self) -> list[model.WaitingEffects]:
        return decode(await self._executor.scan("waiting_effects"), model.WaitingEffects)

    async def replay(self, ids: Sequence[int], actor: str) -> list[int]:
        async def move(run: Run) -> list[int]:
            moved = sorted(row[0] for row in await run("replay_effects", {"ids": self._dialect.array(ids)}))
            if moved:
                detail = json.dumps({"count": len(moved), "effects": moved})
                await run("audit", {"actor": actor, "action": "replay effects", "detail": detail})
            return moved

        return await self._executor.transaction(move)


def _without_none(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}
