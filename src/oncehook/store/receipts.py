"""Receipts, as shown to people."""

from typing import Any

import msgspec
from msgspec.structs import replace

from oncehook.config.keyring import PREFIX, is_sealed
from oncehook.model.receipt import Filter, Receipt, StoredPayload
from oncehook.model.rows import ConsumerReceipt, StoredAttempt, StoredDuplicate, WindowEnd
from oncehook.model.states import UNHANDLED
from oncehook.providers.expressions import parse_time
from oncehook.store.decode import decode
from oncehook.store.dialect import Dialect
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor
from oncehook.store.payload_bodies import PayloadBodies
from oncehook.store.rows import ReceiptPosition


class SqlReceiptStore:
    """Implements `ReceiptStore` on every database."""

    def __init__(self, executor: Executor, encryption: Encryption, bodies: PayloadBodies) -> None:
        self._executor = executor
        self._encryption = encryption
        self._bodies = bodies
        self._dialect = executor.dialect

    async def find(
        self,
        filter: Filter,
        *,
        limit: int,
        before: ReceiptPosition | None = None,
        down_to: ReceiptPosition | None = None,
    ) -> list[Receipt]:
        parameters = filter_parameters(self._dialect, filter) | self._between(before, down_to)
        return await self._find(parameters | {"limit": limit})

    async def by_event_id(self, event_id: str, *, limit: int) -> list[Receipt]:
        sources = self._dialect.texts(await self.sources())
        return await self._find({"event_id": event_id, "sources": sources, "limit": limit})

    async def get(self, receipt: int) -> Receipt | None:
        receipts = await self._find({"receipt": receipt, "limit": 1})
        return receipts[0] if receipts else None

    async def _find(self, parameters: dict[str, Any]) -> list[Receipt]:
        return self._encryption.open_receipts(decode(await self._executor.read("find_receipts", parameters), Receipt))

    async def window_end(self, filter: Filter, *, before: ReceiptPosition | None, size: int) -> ReceiptPosition | None:
        parameters = filter_parameters(self._dialect, Filter(since=filter.since, until=filter.until))
        parameters |= self._between(before) | {"skipped": size - 1}
        rows = decode(await self._executor.read("window_end", parameters), WindowEnd)
        return (rows[0].received_at, rows[0].id) if rows else None

    async def payload(self, receipt: int) -> StoredPayload | None:
        rows = await self._executor.read("payload", {"receipt": receipt})
        if not rows:
            return None
        body, headers, address = rows[0]["body"], rows[0]["headers"], rows[0]["object"]
        is_encrypted = is_sealed(headers)
        if is_encrypted or address is not None:
            event = await self.get(receipt)
            if event is None:  # pruned since
                return None
            body, headers = await self._bodies.read(event, body, headers, address)
        return StoredPayload(body, msgspec.json.decode(headers), is_encrypted)

    async def consumers_of(self, receipt: Receipt) -> list[ConsumerReceipt]:
        rows = await self._executor.read("consumers_of_event", {"main": receipt.main_id or receipt.receipt})
        states = decode(rows, ConsumerReceipt)
        return [replace(row, last_error=self._encryption.open_error(row.last_error, receipt.source)) for row in states]

    async def duplicates(self, receipt: int) -> list[StoredDuplicate]:
        return decode(await self._executor.read("duplicates", {"receipt": receipt}), StoredDuplicate)

    async def attempts(self, receipt: int) -> list[StoredAttempt]:
        rows = decode(await self._executor.read("attempts", {"receipt": receipt}), StoredAttempt)
        if any(row.error is not None and PREFIX in row.error for row in rows):
            event = await self.get(receipt)
            return self._encryption.open_attempts(rows, event.source) if event is not None else []
        return rows

    async def sources(self) -> list[str]:
        return [row["source"] for row in await self._executor.read("known_sources")]

    def _between(self, before: ReceiptPosition | None, down_to: ReceiptPosition | None = None) -> dict[str, Any]:
        parameters: dict[str, Any] = {}
        if before is not None:
            parameters |= {"before_time": self._dialect.time(parse_time(before[0])), "before_receipt": before[1]}
        if down_to is not None:
            parameters |= {"from_time": self._dialect.time(parse_time(down_to[0])), "from_receipt": down_to[1]}
        return parameters


def filter_parameters(dialect: Dialect, filter: Filter) -> dict[str, Any]:
    """Return the conditions of a filter that are set, as parameters."""
    parameters = {
        "source": filter.source,
        "tenant": filter.tenant,
        "consumer": filter.consumer,
        "type": None if filter.type is None else dialect.pattern(filter.type),
        "object": filter.object,
        "status": None if filter.status == UNHANDLED else filter.status,
        "unhandled": True if filter.status == UNHANDLED else None,
        "since": dialect.time(filter.since),
        "until": dialect.time(filter.until),
        "search": filter.search,
        "event_id": filter.event_id,
    }
    return {name: value for name, value in parameters.items() if value is not None}
