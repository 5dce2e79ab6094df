"""SQLite's side of leasing: receipts without a serial key by when they are due, those with one key by key.

All of it is one transaction of the one writer, so what was looked at is what is leased.
"""

import json
import sqlite3
from collections.abc import Callable, Collection
from sys import intern
from typing import Any

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import Settings
from oncehook.model.lease import Leased
from oncehook.model.patterns import Handled
from oncehook.providers.expressions import moment
from oncehook.store.serial import Rounds, told_of
from oncehook.store.sqlite.pause import SqlitePause
from oncehook.store.sqlite.roster import handled_parameters


class SqliteLease(SqlitePause):
    """The verb that takes receipts."""

    notifies = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._rounds = Rounds(SYSTEM)

    async def notify(self) -> None:
        """There is no way to: workers of other processes look by themselves."""

    async def listen(self, wake: Callable[[], None]) -> None:
        """As above."""

    async def lease(
        self,
        limit: int,
        seconds: float,
        worker: str,
        *,
        rescued: bool = False,
        skip_failed: Collection[str] = (),
        handled: Handled | None = None,
    ) -> list[Leased]:
        await self._look_at_pauses(handled)
        given = {
            "seconds": seconds,
            "worker": worker,
            "rescued": rescued,
            "floor": self._pauses.floor,
            "skip_failed": json.dumps(sorted(skip_failed)),
            **handled_parameters(handled),
        }

        def lease(connection: sqlite3.Connection) -> list[Leased]:
            connection.execute("BEGIN IMMEDIATE")
            leased = self._lease(connection, limit, given)
            connection.execute("COMMIT")
            return leased

        return await self.write(lease)

    def _lease(self, connection: sqlite3.Connection, limit: int, given: dict[str, Any]) -> list[Leased]:
        share = self._rounds.share(limit)
        leased = self._lease_serial(connection, share, given) if share else []
        if len(leased) < limit:
            leased += leased_by(connection, self.sql["lease"], {**given, "limit": limit - len(leased)})
        if len(leased) < limit:
            leased += self._lease_serial(connection, limit - len(leased), given)
        return leased

    def _lease_serial(self, connection: sqlite3.Connection, limit: int, given: dict[str, Any]) -> list[Leased]:
        look = self._rounds.begin()
        while look.goes_on(limit):
            source, key = self._pauses.past(self._rounds.after)
            wanted = look.keys_wanted(limit)
            found = {"source": source, "key": key, "most": wanted}
            keys = connection.execute(self.sql["serial_keys"], found).fetchall()
            told = told_of(keys, self._pauses.may_lease)
            room = {**given, "limit": limit - len(look.leased), "keys": told}
            look.passed(keys, wanted, leased_by(connection, self.sql["lease_serial"], room) if keys else [], limit)
        return look.leased


def leased_by(connection: sqlite3.Connection, sql: str, given: dict[str, Any]) -> list[Leased]:
    """The receipts that a statement leases, oldest first."""
    cursor = connection.execute(sql, given)
    names = [intern(column[0]) for column in cursor.description]
    rows = [_leased(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
    return sorted(rows, key=lambda row: row.receipt)


def _leased(row: dict[str, Any]) -> Leased:
    row["occurred_at"], row["received_at"] = moment(row["occurred_at"]), moment(row["received_at"])
    return Leased(**row)
