"""PostgreSQL's side of leasing: receipts without a serial key by when they are due, those with one key by key."""

from collections.abc import Collection, Sequence
from sys import intern
from typing import Any

import asyncpg

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Leased
from oncehook.model.patterns import Handled
from oncehook.store.postgres.pause import PostgresPause
from oncehook.store.postgres.roster import handled_parameters
from oncehook.store.serial import Key, Rounds, told_of


class PostgresLease(PostgresPause):
    """The verb that takes receipts."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings, clock)
        self._rounds = Rounds(clock)

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
        given = {"seconds": seconds, "worker": worker, "rescued": rescued, **handled_parameters(handled)}
        share = self._rounds.share(limit)
        leased = await self._lease_serial(share, given, skip_failed) if share else []
        if len(leased) < limit:
            rows = await self.read(
                self.sql["lease"], {**given, "limit": limit - len(leased), "floor": self._pauses.floor}
            )
            leased += leased_from(rows)
        if len(leased) < limit:
            leased += await self._lease_serial(limit - len(leased), given, skip_failed)
        return leased

    async def _lease_serial(self, limit: int, given: dict[str, Any], skip_failed: Collection[str]) -> list[Leased]:
        look = self._rounds.begin()
        while look.goes_on(limit):
            source, key = self._pauses.past(self._rounds.after)
            wanted = look.keys_wanted(limit)
            rows = await self.read(self.sql["serial_keys"], {"source": source, "key": key, "most": wanted})
            keys = [(row["source"], row["key"]) for row in rows]
            room = {**given, "limit": limit - len(look.leased), "skip_failed": list(skip_failed)}
            look.passed(keys, wanted, await self._lease_heads(keys, room) if keys else [], limit)
        return look.leased

    async def _lease_heads(self, keys: list[Key], given: dict[str, Any]) -> list[Leased]:
        """What could be leased of these keys; nothing where somebody else was at one of them at the same moment."""
        told = told_of(keys, self._pauses.may_lease)
        try:
            rows = await self.read(self.sql["lease_serial"], {**given, "keys": told})
        except StoreUnavailable as error:
            if isinstance(error.__cause__, asyncpg.UniqueViolationError):
                return []
            raise
        return leased_from(rows)


def leased_from(rows: Sequence[asyncpg.Record]) -> list[Leased]:
    """Rows as `Leased`, by the names of their columns. Interned names are found by identity, which is faster."""
    names = [intern(name) for name in rows[0].keys()] if rows else []  # noqa: SIM118 - a Record iterates over values
    return [Leased(**dict(zip(names, row, strict=True))) for row in rows]
