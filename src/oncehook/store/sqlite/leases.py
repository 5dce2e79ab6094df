"""Leasing on SQLite: all of one lease is one transaction of the one writer, so what is looked at is what is leased."""

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeVar

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.lease import Leased, Settled
from oncehook.providers.expressions import parse_time
from oncehook.store.executor import Executor, Run, Work
from oncehook.store.leases import Leases, by_name
from oncehook.store.pauses import Pauses
from oncehook.store.sqlite.file import SqliteFile
from oncehook.store.sqlite.handler import settle_in

T = TypeVar("T")


class SqliteLeases(Leases):
    """Implements `LeaseStore`."""

    def __init__(self, file: SqliteFile, executor: Executor, pauses: Pauses) -> None:
        super().__init__(executor, pauses, SYSTEM)
        self._file = file

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        def settle(connection: sqlite3.Connection) -> set[int]:
            connection.execute("BEGIN IMMEDIATE")
            landed = settle_in(connection, self._file.sql, settled)
            connection.execute("COMMIT")
            return landed

        return await self._file.write(settle)

    async def end_sessions(self, worker: str) -> int:
        return 0  # a process's lock ends with the process

    async def _together(self, work: Work[T]) -> T:
        return await self._executor.transaction(work)

    async def _heads(self, run: Run, given: dict[str, Any]) -> list[Any]:
        return await run("lease_serial", given)

    def _leased(self, rows: Sequence[Any]) -> list[Leased]:
        """The receipts that a statement leased, oldest first."""
        return sorted(map(_leased, by_name(rows)), key=lambda one: one.receipt)


def _leased(row: dict[str, Any]) -> Leased:
    row["occurred_at"], row["received_at"] = parse_time(row["occurred_at"]), parse_time(row["received_at"])
    return Leased(**row)
