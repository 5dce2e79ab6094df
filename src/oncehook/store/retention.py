"""Retention: deleting what is old, and erasing what somebody asks to have forgotten."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from oncehook.model.rows import OldReceipt, Prunable, StoredBody
from oncehook.model.timestamps import rfc3339
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run, Work
from oncehook.store.rows import Cursor, Cutoffs

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

RECEIPT_TABLES = (
    "prune_payloads", "prune_deliveries", "prune_keys", "prune_attempts", "prune_noops", "prune_receipts",
)  # fmt: skip
"""The statements that delete a receipt with all that belongs to it."""


class Retention(ABC):
    """Implements `RetentionStore`; how disk space is freed differs per database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def prunable(self, receipts: Cutoffs, payloads: Cutoffs) -> list[Prunable]:
        before = [
            {"source": source, "receipts": rfc3339(receipts[source]), "payloads": rfc3339(payloads[source])}
            for source in receipts
        ]
        return decode(await self._executor.scan("prunable", {"before": json.dumps(before)}), Prunable)

    async def bodies(self, after: int, limit: int) -> list[StoredBody]:
        return decode(await self._executor.scan("bodies", {"after": after, "limit": limit}), StoredBody)

    async def about_object(self, object_id: str) -> list[int]:
        return [row[0] for row in await self._executor.scan("about_object", {"object_id": object_id})]

    @abstractmethod
    def pruning(self) -> AbstractAsyncContextManager["Pruning | None"]: ...

    @abstractmethod
    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int: ...

    def _erasing(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> Work[list[Any]]:
        """The transaction that erases; it returns a row for each payload."""
        given = {"receipts": self._executor.dialect.array(receipts), "text": text}

        async def work(run: Run) -> list[Any]:
            erased = await run("erase_payloads", given)
            await run("erase_in_effects", given)
            if text is not None:
                await run("erase_in_receipts", given)
                await run("erase_in_attempts", given)
            await run("audit", {"actor": actor, "action": "forget", "detail": detail})
            return erased

        return work


class Pruning(ABC):
    """Implements `Pruning` of the protocols; whole days and free space differ per database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._dialect = executor.dialect

    @abstractmethod
    async def make_days(self) -> None: ...

    @abstractmethod
    async def drop_days(self, payloads: Cutoffs) -> list[str]: ...

    @abstractmethod
    async def give_back(self) -> bool: ...

    async def prune_payloads(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        rows, cursor = await self._old(before, after, limit)
        return await self._delete([row for row in rows if row["has_payload"]], RECEIPT_TABLES[:1]), cursor

    async def prune_receipts(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        rows, cursor = await self._old(before, after, limit)
        return await self._delete(rows, RECEIPT_TABLES), cursor

    async def clear_effects(self, before: Cutoffs, limit: int) -> int:
        return len(await self._executor.write("clear_effects", {"before": before_json(before), "limit": limit}))

    async def prune_effects(self, before: datetime, limit: int) -> int:
        given = {"before": self._dialect.time(before), "limit": limit}
        return len(await self._executor.write("prune_effects", given))

    async def _old(self, before: Cutoffs, after: Cursor | None, limit: int) -> tuple[list[Any], Cursor | None]:
        """The next page of finished receipts that are old."""
        if not before:
            return [], None
        time, receipt = after or (EPOCH, 0)
        given = {
            "before": before_json(before),
            "latest": self._dialect.time(max(before.values())),
            "after_time": self._dialect.time(time),
            "after_receipt": receipt,
            "limit": limit,
        }
        rows = await self._executor.read("old_receipts", given)
        if len(rows) < limit:
            return rows, None
        last = decode(rows[-1:], OldReceipt)[0]
        return rows, (last.received_at, last.id)

    async def _delete(self, rows: Sequence[Any], statements: Sequence[str]) -> dict[str, int]:
        """Delete what belongs to those of `rows` that are still finished: a replay may have come between."""
        if not rows:
            return {}
        array = self._dialect.array
        days = array(sorted({row["day"] for row in rows}))

        async def work(run: Run) -> dict[str, int]:
            held = await run("hold_old", {"receipts": array(row["id"] for row in rows)})
            given = {"receipts": array(row["id"] for row in held), "days": days}
            for name in statements:
                await run(name, given)
            return dict(Counter(row["source"] for row in held))

        return await self._executor.transaction(work)


def before_json(cutoffs: Cutoffs) -> str:
    return json.dumps([{"source": source, "before": rfc3339(time)} for source, time in cutoffs.items()])
