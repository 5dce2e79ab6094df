"""Retention: deletion of old data, and erasure on request."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

from oncehook.config.keyring import PREFIX
from oncehook.model.rows import OldReceipt, Prunable, ReceiptTime, StoredBody, TenantCounts
from oncehook.model.timestamps import rfc3339
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run, Work
from oncehook.store.leadership import Leadership, hold
from oncehook.store.rows import Cutoffs, PruneCursor

T = TypeVar("T")

PRUNE = "prune"
"""The task whose leader prunes."""

PRUNE_TERM = 120.0
"""Seconds after which another process may prune if the leader stalls. Every step of the leader extends its term."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

RECEIPT_TABLES = (
    "prune_payloads", "release_objects", "prune_deliveries", "prune_keys", "prune_attempts", "prune_noops",
    "prune_receipts",
)  # fmt: skip
"""The statements that delete a receipt and all its rows in other tables."""

PAYLOAD_TABLES = 2
"""How many of these statements delete only its payload."""

ERASING = ("erase_in_effects", "erase_receipts", "erase_attempts", "prune_deliveries", "prune_keys", "prune_noops")
"""The statements that erase everything about a receipt except its event id, besides its payload."""

ERASING_STATE = ("erase_tenant_effects", "erase_tenant_entities", "erase_tenant_rejections")
"""The statements that delete the rows of a tenant that belong to no receipt."""


class SqlRetentionStore(ABC):
    """Implements the part of `RetentionStore` that both databases share."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def prunable(self, receipts: Cutoffs, payloads: Cutoffs) -> list[Prunable]:
        before = [
            {"source": source, "receipts": rfc3339(receipts[source]), "payloads": rfc3339(payloads[source])}
            for source in receipts
        ]
        return decode(await self._executor.scan("prunable", {"before": json.dumps(before)}), Prunable)

    async def payloads(self, after: int, limit: int) -> list[StoredBody]:
        return decode(await self._executor.scan("payloads_after", {"after": after, "limit": limit}), StoredBody)

    async def with_object(self, object_id: str) -> list[int]:
        return [row[0] for row in await self._executor.scan("receipts_with_object", {"object_id": object_id})]

    @abstractmethod
    def start_pruning(self) -> AbstractAsyncContextManager["SqlPruning | None"]: ...

    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int:
        return await self._run_erasing(self._erasing(receipts, text, actor, detail))

    @abstractmethod
    async def _run_erasing(self, work: Work[list[Any]]) -> int:
        """Run an erasing transaction, and remove the erased rows from the disk. Returns the number of payloads."""

    async def tenant_counts(self, source: str, tenant: str) -> TenantCounts:
        return decode(await self._executor.scan("tenant_counts", _tenant_parameters(source, tenant)), TenantCounts)[0]

    async def erase_tenant(
        self, source: str, tenant: str, actor: str, *, after: PruneCursor | None, limit: int
    ) -> tuple[int, PruneCursor | None]:
        array, time = self._executor.dialect.array, self._executor.dialect.time
        at, receipt = after or (EPOCH, 0)
        page = {"source": source, "tenant": tenant, "after_time": time(at), "after_receipt": receipt, "limit": limit}
        rows = await self._executor.read("tenant_receipts", page)
        parameters = {"receipts": array(row["id"] for row in rows), "text": None, "sealed": PREFIX}
        detail = json.dumps({"source": source, "tenant": tenant, "count": len(rows)})

        async def work(run: Run) -> list[Any]:
            erased = await run("erase_payloads", parameters)
            await run("release_objects", parameters)
            for name in ERASING:
                await run(name, parameters)
            if rows:
                await run("audit", {"actor": actor, "action": "forget", "detail": detail})
            return erased

        erased = await self._run_erasing(work)
        if len(rows) < limit:
            return erased, None
        last = decode(rows[-1:], ReceiptTime)[0]
        return erased, (last.received_at, last.id)

    async def erase_tenant_state(self, source: str, tenant: str, actor: str) -> int:
        parameters = _tenant_parameters(source, tenant)

        async def work(run: Run) -> list[Any]:
            erased = [row for name in ERASING_STATE for row in await run(name, parameters)]
            if erased:
                detail = json.dumps({"source": source, "tenant": tenant, "state": len(erased)})
                await run("audit", {"actor": actor, "action": "forget", "detail": detail})
            return erased

        return await self._executor.transaction(lambda run: _count(work(run)))

    def _erasing(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> Work[list[Any]]:
        """Return the work of an erasing transaction. The work returns a row for each erased payload.

        An event has one payload. It is erased for all consumers, whichever consumer's receipt is passed.
        """
        array = self._executor.dialect.array

        async def work(run: Run) -> list[Any]:
            every = await run("receipts_of_events", {"receipts": array(receipts)})
            parameters = {"receipts": array(row["id"] for row in every), "text": text, "sealed": PREFIX}
            erased = await run("erase_payloads", parameters)
            await run("release_objects", parameters)
            others = (
                ["erase_in_effects"] if text is None else ["erase_in_effects", "erase_in_receipts", "erase_in_attempts"]
            )
            changed = [row for query in others for row in await run(query, parameters)]
            if erased or changed:
                await run("audit", {"actor": actor, "action": "forget", "detail": detail})
            return erased

        return work


class SqlPruning(ABC):
    """Implements the part of `Pruning` that both databases share."""

    def __init__(self, executor: Executor, leadership: Leadership) -> None:
        self._executor = executor
        self._dialect = executor.dialect
        self._leadership = leadership

    async def extend(self, seconds: float = PRUNE_TERM) -> None:
        await hold(self._executor.write, self._leadership, seconds)

    async def _fenced(self, work: Work[T]) -> T:
        """Run a transaction that changes nothing unless this process is still the leader."""

        async def fenced(run: Run) -> T:
            await hold(run, self._leadership, PRUNE_TERM)
            return await work(run)

        return await self._executor.transaction(fenced)

    @abstractmethod
    async def create_days(self) -> None: ...

    @abstractmethod
    async def drop_days(self, payloads: Cutoffs) -> list[str]: ...

    @abstractmethod
    async def free_space(self) -> bool: ...

    async def prune_payloads(
        self, before: Cutoffs, after: PruneCursor | None, limit: int
    ) -> tuple[dict[str, int], PruneCursor | None]:
        rows, cursor = await self._old_receipts(before, after, limit)
        return await self._delete([row for row in rows if row["has_payload"]], RECEIPT_TABLES[:PAYLOAD_TABLES]), cursor

    async def prune_receipts(
        self, before: Cutoffs, after: PruneCursor | None, limit: int
    ) -> tuple[dict[str, int], PruneCursor | None]:
        rows, cursor = await self._old_receipts(before, after, limit)
        return await self._delete(rows, RECEIPT_TABLES), cursor

    async def clear_effects(self, before: Cutoffs, limit: int) -> int:
        parameters = {"before": before_json(before), "limit": limit}
        return await self._fenced(lambda run: _count(run("clear_effects", parameters)))

    async def prune_effects(self, before: datetime, limit: int) -> int:
        parameters = {"before": self._dialect.time(before), "limit": limit}
        return await self._fenced(lambda run: _count(run("prune_effects", parameters)))

    async def _old_receipts(
        self, before: Cutoffs, after: PruneCursor | None, limit: int
    ) -> tuple[list[Any], PruneCursor | None]:
        """Return the next page of old finished receipts, and the cursor behind it."""
        if not before:
            return [], None
        time, receipt = after or (EPOCH, 0)
        parameters = {
            "before": before_json(before),
            "latest": self._dialect.time(max(before.values())),
            "after_time": self._dialect.time(time),
            "after_receipt": receipt,
            "limit": limit,
        }
        rows = await self._executor.read("old_receipts", parameters)
        if len(rows) < limit:
            return rows, None
        last = decode(rows[-1:], OldReceipt)[0]
        return rows, (last.received_at, last.id)

    async def _delete(self, rows: Sequence[Any], statements: Sequence[str]) -> dict[str, int]:
        """Delete rows of the events that are still finished. A replay may have changed some of their receipts."""
        if not rows:
            return {}
        array = self._dialect.array
        days = array(sorted({row["day"] for row in rows}))

        async def work(run: Run) -> dict[str, int]:
            locked = await run("lock_old_receipts", {"receipts": array(row["id"] for row in rows)})
            locked = await _lock_copies(run, array, locked)
            if statements is not RECEIPT_TABLES:
                locked = [row for row in locked if row["main_id"] is None]  # which have the payloads
            parameters = {"receipts": array(row["id"] for row in locked), "days": days}
            for name in statements:
                await run(name, parameters)
            return dict(Counter(row["source"] for row in locked))

        return await self._fenced(work)


async def _lock_copies(run: Run, array: Callable[[Iterable[Any]], Any], mains: Sequence[Any]) -> list[Any]:
    """Lock the receipts of other consumers too. Returns all receipts of events that every consumer has finished.

    The locks on the receipts of `main` keep a backfill from adding receipts to these events.
    """
    copies = await run("copies", {"receipts": array(row["id"] for row in mains)})
    if not copies:
        return list(mains)
    locked = await run("lock_old_receipts", {"receipts": array(row["id"] for row in copies)})
    unfinished = {row["id"]: row["main_id"] for row in copies}
    for row in locked:
        del unfinished[row["id"]]
    kept = set(unfinished.values())
    return [row for row in (*mains, *locked) if (row["main_id"] or row["id"]) not in kept]


def _tenant_parameters(source: str, tenant: str) -> dict[str, str]:
    return {"source": source, "tenant": tenant, "scope": f"{source}/{tenant}"}


async def _count(rows: Awaitable[list[Any]]) -> int:
    return len(await rows)


def before_json(cutoffs: Cutoffs) -> str:
    """Encode cutoffs for a statement."""
    return json.dumps([{"source": source, "before": rfc3339(time)} for source, time in cutoffs.items()])
