"""Leases: which receipts a worker takes, and how attempts end.

Receipts without a serial key are taken in the order in which they are due, those with one key by key.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import partial
from sys import intern
from typing import Any, TypeVar

import msgspec

from oncehook.concurrency.clock import Clock
from oncehook.model.lease import Held, Leased, Settled
from oncehook.model.patterns import Handled
from oncehook.model.rows import AbandonedReceipt, ExpiredReceipt
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run, Work
from oncehook.store.pauses import Pauses, handled_parameters
from oncehook.store.serial import Rounds, told_of

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class Leases(ABC):
    """Implements `LeaseStore`; what one lease has in one transaction differs per database."""

    def __init__(self, executor: Executor, pauses: Pauses, clock: Clock) -> None:
        self._executor = executor
        self._dialect = executor.dialect
        self._pauses = pauses
        self._backlog = pauses.backlog
        self._rounds = Rounds(clock)

    @abstractmethod
    async def settle(self, settled: Sequence[Settled]) -> set[int]: ...

    @abstractmethod
    async def end_sessions(self, worker: str) -> int: ...

    @abstractmethod
    async def _together(self, work: Work[T]) -> T:
        """Run the statements of one lease."""

    @abstractmethod
    async def _heads(self, run: Run, given: dict[str, Any]) -> list[Any]:
        """The receipts that could be leased of some serial keys."""

    @abstractmethod
    def _leased(self, rows: Sequence[Any]) -> list[Leased]: ...

    async def take(
        self, limit: int, seconds: float, worker: str, *,
        rescued: bool = False, skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> list[Leased]:  # fmt: skip
        await self._pauses.refresh(handled)
        given = {
            "seconds": seconds,
            "worker": worker,
            "rescued": rescued,
            "floor": self._backlog.floor,
            "skip_failed": self._dialect.texts(sorted(skip_failed)),
            **handled_parameters(self._dialect, handled),
        }
        return await self._together(partial(self._take, limit, given))

    async def _take(self, limit: int, given: dict[str, Any], run: Run) -> list[Leased]:
        share = self._rounds.share(limit)
        leased = await self._take_serial(run, share, given) if share else []
        if len(leased) < limit:
            leased += self._leased(await run("lease", {**given, "limit": limit - len(leased)}))
        if len(leased) < limit:
            leased += await self._take_serial(run, limit - len(leased), given)
        return leased

    async def _take_serial(self, run: Run, limit: int, given: dict[str, Any]) -> list[Leased]:
        look = self._rounds.begin()
        while look.goes_on(limit):
            source, key = self._backlog.past(self._rounds.after)
            wanted = look.keys_wanted(limit)
            rows = await run("serial_keys", {"source": source, "key": key, "most": wanted})
            keys = [(row["source"], row["key"]) for row in rows]
            room = {**given, "limit": limit - len(look.leased), "keys": told_of(keys, self._backlog.may_lease)}
            look.passed(keys, wanted, self._leased(await self._heads(run, room)) if keys else [], limit)
        return look.leased

    async def take_one(self, receipt: int, seconds: float, worker: str) -> Leased | None:
        given = {"receipt": receipt, "seconds": seconds, "worker": worker}
        leased = self._leased(await self._executor.write("lease_one", given))
        return leased[0] if leased else None

    async def abandon_inline(self, reason: str) -> list[AbandonedReceipt]:
        return decode(await self._executor.write("abandon_inline", {"reason": reason}), AbandonedReceipt)

    async def release(self, held: Sequence[Held], after: float | None = None) -> int:
        return len(await self._executor.write("release", {"held": held_json(held), "after": after}))

    async def release_strays(self, worker: str, held: Collection[int]) -> int:
        given = {"worker": worker, "held": self._dialect.array(held)}
        return len(await self._executor.write("release_strays", given))

    async def expired(self, limit: int, after: int) -> list[ExpiredReceipt]:
        return decode(await self._executor.read("expired", {"limit": limit, "after": after}), ExpiredReceipt)

    async def next_due(self, handled: Handled | None = None) -> float | None:
        rows = await self._executor.read("next_due", handled_parameters(self._dialect, handled))
        due: float | None = rows[0][0]
        return due


def by_name(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows as the arguments of a struct. Interned names are found by identity, which is faster."""
    names = [intern(name) for name in rows[0].keys()] if rows else []  # noqa: SIM118 - a row iterates over values
    return [dict(zip(names, row, strict=True)) for row in rows]


def held_json(held: Sequence[Held]) -> str:
    return _encode([{"receipt": receipt, "lease": lease} for receipt, lease in held]).decode()
