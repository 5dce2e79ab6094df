"""Leases: which receipts a worker leases, and how attempts are settled.

Receipts without a serial key are leased in the order in which they are due, receipts with a serial key by key.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import partial
from sys import intern
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from oncehook.concurrency.clock import Clock
from oncehook.model.lease import Leased, LeaseKey, Settled
from oncehook.model.patterns import Handled
from oncehook.model.rows import AbandonedReceipt, ExpiredReceipt, ListedReceipt
from oncehook.store.decode import decode
from oncehook.store.encryption import Encryption, without_sealed
from oncehook.store.executor import Executor, Run, Work
from oncehook.store.pauses import SqlPauseStore, handled_parameters
from oncehook.store.serial import Key, KeyRotation, keys_json
from oncehook.store.turns import lease_turns, tenant_of

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class SqlLeaseStore(ABC):
    """Implements the part of `LeaseStore` that both databases share."""

    def __init__(self, executor: Executor, pauses: SqlPauseStore, encryption: Encryption, clock: Clock) -> None:
        self._executor = executor
        self._encryption = encryption
        self._consumer = pauses.consumer
        self._dialect = executor.dialect
        self._pauses = pauses
        self._backlog = pauses.backlog
        self._rotation = KeyRotation(clock)
        self._turns = KeyRotation(clock, tenant_of)

    @abstractmethod
    async def settle(self, settled: Sequence[Settled]) -> set[int]: ...

    @abstractmethod
    async def end_sessions(self, worker: str, begun_before: float = 0.0) -> int: ...

    @abstractmethod
    async def _run_statements(self, work: Work[T]) -> T:
        """Run the statements of one `take`: in one transaction, or each in its own."""

    @abstractmethod
    async def _lease_heads(self, run: Run, parameters: dict[str, Any]) -> list[Any]:
        """Lease the first receipts of some serial keys."""

    @abstractmethod
    async def _lease_turn(
        self, run: Run, parameters: dict[str, Any], tenants: Sequence[Key], each: int, limit: int
    ) -> list[Leased]:
        """Lease up to `each` receipts of each of some tenants, and up to `limit` in total."""

    @abstractmethod
    def _to_leased(self, rows: Sequence[Any]) -> list[Leased]:
        """Convert the rows of a lease."""

    async def take(
        self, limit: int, seconds: float, worker: str, *,
        rescued: bool = False, skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> list[Leased]:  # fmt: skip
        has_tenants = self._pauses.has_tenants()
        await self._pauses.refresh(handled)
        parameters = {
            "seconds": seconds,
            "worker": worker,
            "rescued": rescued,
            "floor": self._backlog.floor,
            "skip_failed": self._dialect.texts(sorted(skip_failed)),
            **self._handled(handled),
        }
        take = self._take
        if has_tenants and rescued:
            parameters["floor"] = self._dialect.earliest  # the floor is that of events without a tenant
        elif has_tenants:
            take = self._take_in_turns
        return self._encryption.open_leases(await self._run_statements(partial(take, limit, parameters)))

    async def _take_in_turns(self, limit: int, parameters: dict[str, Any], run: Run) -> list[Leased]:
        """Lease the events of tenants in turns, and events without a tenant in the order in which they are due."""
        share = self._turns.share(limit)
        leased = await self._take_turns(run, share, parameters) if share else []
        if len(leased) < limit:
            leased += await self._take(limit - len(leased), parameters | {"tenant": ""}, run)
        if len(leased) < limit:
            leased += await self._take_turns(run, limit - len(leased), parameters)
        return leased

    async def _take_turns(self, run: Run, limit: int, parameters: dict[str, Any]) -> list[Leased]:
        scan = self._turns.begin()
        lease_turn = partial(self._lease_turn, run, parameters)
        while scan.is_unfinished(limit):
            source, key = self._backlog.skip_source(self._turns.after)
            size = scan.batch_size(limit)
            position = {"consumer": self._consumer, "source": source, "key": key}
            rows = await run("waiting_tenants", position | {"most": size})
            tenants = [(row["source"], row["key"]) for row in rows]
            due = [(row["source"], row["key"]) for row in rows if row["is_due"]]
            leased = await lease_turns(
                [tenant for tenant in due if self._backlog.may_lease(tenant[0])], limit - len(scan.leased), lease_turn
            )
            scan.advance(tenants, size, leased, limit)
        if scan.is_cut_off:  # many tenants wait for their retries: a due one may be beyond those that were visited
            anyone = {**parameters, "floor": self._dialect.earliest, "limit": limit - len(scan.leased)}
            return scan.leased + self._to_leased(await run("lease", anyone))
        return scan.leased

    async def _take(self, limit: int, parameters: dict[str, Any], run: Run) -> list[Leased]:
        share = self._rotation.share(limit)
        leased = await self._take_serial(run, share, parameters) if share else []
        if len(leased) < limit:
            leased += self._to_leased(await run("lease", {**parameters, "limit": limit - len(leased)}))
        if len(leased) < limit:
            leased += await self._take_serial(run, limit - len(leased), parameters)
        return leased

    async def _take_serial(self, run: Run, limit: int, parameters: dict[str, Any]) -> list[Leased]:
        scan = self._rotation.begin()
        while scan.is_unfinished(limit):
            source, key = self._backlog.skip_source(self._rotation.after)
            size = scan.batch_size(limit)
            position = {"consumer": self._consumer, "source": source, "key": key}
            rows = await run("serial_keys", position | {"most": size})
            keys = [(row["source"], row["key"]) for row in rows]
            heads = {**parameters, "limit": limit - len(scan.leased), "keys": keys_json(keys, self._backlog.may_lease)}
            leased = self._to_leased(await self._lease_heads(run, heads)) if keys else []
            scan.advance(keys, size, leased, limit)
        return scan.leased

    def _handled(self, handled: Handled | None) -> dict[str, Any]:
        return {"consumer": self._consumer, **handled_parameters(self._dialect, handled)}

    async def take_one(self, receipt: int, seconds: float, worker: str) -> Leased | None:
        parameters = {"receipt": receipt, "seconds": seconds, "worker": worker}
        leased = self._encryption.open_leases(self._to_leased(await self._executor.write("lease_one", parameters)))
        return leased[0] if leased else None

    async def take_listed(
        self, receipts: Sequence[int], seconds: float, worker: str, *,
        rescued: bool = False, skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> tuple[list[Leased], dict[int, ListedReceipt]]:  # fmt: skip
        parameters = self._listed(seconds, worker, rescued, skip_failed, handled)
        listed = {**parameters, "receipts": self._dialect.array(receipts)}
        leased = self._to_leased(await self._executor.write("lease_listed", listed))
        others = set(receipts) - {row.receipt for row in leased}
        if not others:
            return self._encryption.open_leases(leased), {}
        listed = {"consumer": self._consumer, "receipts": self._dialect.array(sorted(others))}
        states = {
            row.receipt: row for row in decode(await self._executor.read("listed_receipts", listed), ListedReceipt)
        }
        keys = {
            (row.source, row.serial_key): None for row in states.values() if _may_be_head(row, self._consumer, rescued)
        }
        leased = self._encryption.open_leases(leased)
        return leased + await self._take_heads(list(keys), parameters), states

    async def take_keys(
        self, keys: Sequence[Key], seconds: float, worker: str, *,
        skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> list[Leased]:  # fmt: skip
        return await self._take_heads(keys, self._listed(seconds, worker, False, skip_failed, handled))

    async def _take_heads(self, keys: Sequence[Any], parameters: dict[str, Any]) -> list[Leased]:
        if not keys:
            return []
        heads = {**parameters, "limit": len(keys), "keys": keys_json(keys, lambda source: True)}
        return self._encryption.open_leases(self._to_leased(await self._lease_heads(self._executor.write, heads)))

    def _listed(
        self, seconds: float, worker: str, rescued: bool, skip_failed: Collection[str], handled: Handled | None
    ) -> dict[str, Any]:
        failed = self._dialect.texts(sorted(skip_failed))
        return {
            "seconds": seconds,
            "worker": worker,
            "rescued": rescued,
            "skip_failed": failed,
            **self._handled(handled),
        }

    async def abandon_inline(self, reason: str) -> list[AbandonedReceipt]:
        rows = decode(await self._executor.write("abandon_inline", {"reason": reason}), AbandonedReceipt)
        return [replace(row, last_error=without_sealed(row.last_error)) for row in rows]

    async def release(self, keys: Sequence[LeaseKey], after: float | None = None) -> int:
        return len(await self._executor.write("release", {"held": lease_keys_json(keys), "after": after}))

    async def release_strays(self, worker: str, held: Collection[int]) -> int:
        parameters = {"worker": worker, "consumer": self._consumer, "held": self._dialect.array(held)}
        return len(await self._executor.write("release_strays", parameters))

    async def expired(self, limit: int, after: int) -> list[ExpiredReceipt]:
        return decode(await self._executor.read("expired", {"limit": limit, "after": after}), ExpiredReceipt)

    async def next_due(self, handled: Handled | None = None) -> float | None:
        rows = await self._executor.read("next_due", self._handled(handled))
        due: float | None = rows[0][0]
        return due


def _may_be_head(row: ListedReceipt, consumer: str, rescued: bool) -> bool:
    """Whether a serial key may have a receipt to lease, because one of its receipts was listed and waits or is done."""
    return row.serial_key is not None and row.consumer == consumer and not row.is_paused and row.is_rescued == rescued


def as_dicts(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert rows to arguments of a struct. Interned names are compared by identity, which is faster."""
    names = [intern(name) for name in rows[0].keys()] if rows else []  # noqa: SIM118 - a row iterates over values
    return [dict(zip(names, row, strict=True)) for row in rows]


def lease_keys_json(keys: Sequence[LeaseKey]) -> str:
    """Encode leases for a statement."""
    return _encode([{"receipt": receipt, "lease": lease} for receipt, lease in keys]).decode()
