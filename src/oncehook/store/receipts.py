"""Receipts as people look at them."""

from typing import Any

import msgspec

from oncehook.model.receipt import Filter, Receipt, StoredPayload
from oncehook.model.rows import StoredAttempt, StoredDuplicate, WindowEnd
from oncehook.model.states import UNHANDLED
from oncehook.providers.expressions import parse_time
from oncehook.store.decode import decode
from oncehook.store.dialect import Dialect
from oncehook.store.executor import Executor
from oncehook.store.rows import Place


class Receipts:
    """Implements `ReceiptStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._dialect = executor.dialect

    async def find(
        self, wanted: Filter, *, limit: int, before: Place | None = None, down_to: Place | None = None
    ) -> list[Receipt]:
        given = filter_parameters(self._dialect, wanted) | self._between(before, down_to)
        return await self._find(given | {"limit": limit})

    async def by_event_id(self, event_id: str, *, limit: int) -> list[Receipt]:
        sources = self._dialect.texts(await self.sources())
        return await self._find({"event_id": event_id, "sources": sources, "limit": limit})

    async def get(self, receipt: int) -> Receipt | None:
        found = await self._find({"receipt": receipt, "limit": 1})
        return found[0] if found else None

    async def _find(self, given: dict[str, Any]) -> list[Receipt]:
        return decode(await self._executor.read("find", given), Receipt)

    async def window_end(self, wanted: Filter, *, before: Place | None, size: int) -> Place | None:
        given = filter_parameters(self._dialect, Filter(since=wanted.since, until=wanted.until))
        given |= self._between(before) | {"skipped": size - 1}
        rows = decode(await self._executor.read("window_end", given), WindowEnd)
        return (rows[0].received_at, rows[0].id) if rows else None

    async def payload(self, receipt: int) -> StoredPayload | None:
        rows = await self._executor.read("payload", {"receipt": receipt})
        return StoredPayload(rows[0]["body"], msgspec.json.decode(rows[0]["headers"])) if rows else None

    async def duplicates(self, receipt: int) -> list[StoredDuplicate]:
        return decode(await self._executor.read("duplicates", {"receipt": receipt}), StoredDuplicate)

    async def attempts(self, receipt: int) -> list[StoredAttempt]:
        return decode(await self._executor.read("attempts", {"receipt": receipt}), StoredAttempt)

    async def sources(self) -> list[str]:
        return [row["source"] for row in await self._executor.read("known_sources")]

    def _between(self, before: Place | None, down_to: Place | None = None) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if before is not None:
            given |= {"before_time": self._dialect.time(parse_time(before[0])), "before_receipt": before[1]}
        if down_to is not None:
            given |= {"from_time": self._dialect.time(parse_time(down_to[0])), "from_receipt": down_to[1]}
        return given


def filter_parameters(dialect: Dialect, wanted: Filter) -> dict[str, Any]:
    """The conditions of a filter that are set, as parameters."""
    given = {
        "source": wanted.source,
        "type": None if wanted.type is None else dialect.pattern(wanted.type),
        "object": wanted.object,
        "status": None if wanted.status == UNHANDLED else wanted.status,
        "unhandled": True if wanted.status == UNHANDLED else None,
        "since": dialect.time(wanted.since),
        "until": dialect.time(wanted.until),
        "search": wanted.search,
        "event_id": wanted.event_id,
    }
    return {name: value for name, value in given.items() if value is not None}
