"""Leases on PostgreSQL. Each statement of a lease commits separately."""

from collections.abc import Sequence
from typing import Any, TypeVar

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Leased, Settled
from oncehook.store.executor import Run, Work
from oncehook.store.leases import SqlLeaseStore, as_dicts
from oncehook.store.postgres.session import session_name
from oncehook.store.serial import Key, keys_json

T = TypeVar("T")


class PostgresLeaseStore(SqlLeaseStore):
    """Implements `LeaseStore`."""

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        return {row[0] for row in await self._executor.write("settle", {"input": self._dialect.json(settled)})}

    async def end_sessions(self, worker: str, begun_before: float = 0.0) -> int:
        parameters = {"worker": worker, "session": session_name(worker), "begun_before": begun_before}
        return len(await self._executor.write("end_sessions", parameters))

    async def _run_statements(self, work: Work[T]) -> T:
        return await work(self._executor.write)

    async def _lease_heads(self, run: Run, parameters: dict[str, Any]) -> list[Any]:
        try:
            return await run("lease_serial", parameters)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, asyncpg.UniqueViolationError):
                return []  # another worker leased one of these keys at the same moment
            raise

    async def _lease_turn(
        self, run: Run, parameters: dict[str, Any], tenants: Sequence[Key], each: int, limit: int
    ) -> list[Leased]:
        keys = keys_json(tenants, self._backlog.may_lease)
        return self._to_leased(await run("lease_turn", {**parameters, "keys": keys, "each": each, "limit": limit}))

    def _to_leased(self, rows: Sequence[Any]) -> list[Leased]:
        return [Leased(**row) for row in as_dicts(rows)]
