"""Leases on SQLite. All statements of a lease run in one transaction of the writer."""

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeVar

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.lease import Leased, Settled
from oncehook.providers.expressions import parse_time
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor, Run, Work
from oncehook.store.leases import SqlLeaseStore, as_dicts
from oncehook.store.pauses import SqlPauseStore
from oncehook.store.serial import Key
from oncehook.store.sqlite.file import SqliteFile
from oncehook.store.sqlite.handler import settle_receipts

T = TypeVar("T")


class SqliteLeaseStore(SqlLeaseStore):
    """Implements `LeaseStore`."""

    def __init__(self, file: SqliteFile, executor: Executor, pauses: SqlPauseStore, encryption: Encryption) -> None:
        super().__init__(executor, pauses, encryption, SYSTEM)
        self._file = file

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        def settle(connection: sqlite3.Connection) -> set[int]:
            connection.execute("BEGIN IMMEDIATE")
            landed = settle_receipts(connection, self._file.sql, settled)
            connection.execute("COMMIT")
            return landed

        return await self._file.write(settle)

    async def end_sessions(self, worker: str, begun_before: float = 0.0) -> int:
        return 0  # the operating system releases the locks of a dead process

    async def _run_statements(self, work: Work[T]) -> T:
        return await self._executor.transaction(work)

    async def _lease_heads(self, run: Run, parameters: dict[str, Any]) -> list[Any]:
        return await run("lease_serial", parameters)

    async def _lease_turn(
        self, run: Run, parameters: dict[str, Any], tenants: Sequence[Key], each: int, limit: int
    ) -> list[Leased]:
        """Lease from one tenant after the other: these statements run in one transaction of the writer's thread."""
        leased: list[Leased] = []
        for source, key in tenants:
            room = min(each, limit - len(leased))
            if not room:
                break
            leased += self._to_leased(
                await run("lease_turn", {**parameters, "source": source, "key": key, "each": room})
            )
        return leased

    def _to_leased(self, rows: Sequence[Any]) -> list[Leased]:
        """Convert the rows of a lease, oldest first."""
        return sorted(map(_to_leased, as_dicts(rows)), key=lambda leased: leased.receipt)


def _to_leased(row: dict[str, Any]) -> Leased:
    row["occurred_at"], row["received_at"] = parse_time(row["occurred_at"]), parse_time(row["received_at"])
    return Leased(**row)
