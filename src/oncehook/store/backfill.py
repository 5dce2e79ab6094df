"""Backfill: receipts of a consumer for events that arrived before it subscribed."""

import json
from collections.abc import Sequence
from typing import Any

from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import BackfillEvent, BackfillPayload, BackfillRange, BackfillRow, PruneCursor


class SqlBackfillStore:
    """Implements `BackfillStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._dialect = executor.dialect

    async def page(self, range_: BackfillRange, after: PruneCursor, limit: int) -> list[BackfillEvent]:
        parameters = self._parameters(range_) | {
            "after_time": self._dialect.time(after[0]),
            "after_receipt": after[1],
            "limit": limit,
        }
        return decode(await self._executor.scan("backfill_page", parameters), BackfillEvent)

    async def count(self, range_: BackfillRange) -> int:
        number: int = (await self._executor.scan("backfill_count", self._parameters(range_)))[0]["number"]
        return number

    async def payloads(self, receipts: Sequence[int]) -> list[BackfillPayload]:
        parameters = {"receipts": self._dialect.array(receipts)}
        return decode(await self._executor.read("backfill_payloads", parameters), BackfillPayload)

    async def insert(self, consumer: str, rows: Sequence[BackfillRow]) -> dict[int, str] | None:
        receipts = self._dialect.array(sorted(row.receipt for row in rows))
        encoded = [{"receipt": row.receipt, "status": row.status, "last_error": row.last_error} for row in rows]

        async def work(run: Run) -> dict[int, str] | None:
            if not await run("lock_backfilled_consumer", {"consumer": consumer}):
                return None
            await run("lock_backfilled_events", {"receipts": receipts})
            inserted = await run("backfill", {"consumer": consumer, "rows": json.dumps(encoded)})
            return {row["main_id"]: row["status"] for row in inserted}

        return await self._executor.transaction(work)

    def _parameters(self, range_: BackfillRange) -> dict[str, Any]:
        parameters = {
            "consumer": range_.consumer,
            "sources": json.dumps(list(range_.sources)),
            "since": self._dialect.time(range_.since),
            "until": self._dialect.time(range_.until),
        }
        return parameters if range_.type is None else parameters | {"type": self._dialect.pattern(range_.type)}
