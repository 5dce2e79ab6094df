"""What a queue of workers needs to know of receipts: those to send, and those whose messages the queue gave up."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from oncehook.model.rows import AbandonedReceipt, QueuedReceipt
from oncehook.store.decode import decode
from oncehook.store.encryption import without_sealed
from oncehook.store.executor import Executor
from oncehook.store.rows import GivenUp
from oncehook.store.serial import MAX_KEYS, START, keys_json

MAX_OVERDUE = 10_000
"""How many receipts one sweep reads at most, the oldest first. It also visits the first MAX_KEYS serial keys."""


class SqlQueueStore:
    """Implements `QueueStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._array = executor.dialect.array

    async def copies(self, receipts: Sequence[int]) -> list[QueuedReceipt]:
        return decode(await self._executor.read("consumer_copies", {"receipts": self._array(receipts)}), QueuedReceipt)

    async def overdue(self, consumer: str, seconds: float, most: float | None = None) -> list[QueuedReceipt]:
        parameters: dict[str, Any] = {"consumer": consumer, "seconds": seconds}
        if most is not None:
            parameters["most"] = most
        rows = await self._executor.scan("overdue", {**parameters, "limit": MAX_OVERDUE})
        first = {"consumer": consumer, "source": START[0], "key": START[1], "most": MAX_KEYS}
        keys = [(row["source"], row["key"]) for row in await self._executor.scan("serial_keys", first)]
        if keys:
            heads = {**parameters, "keys": keys_json(keys, lambda source: True)}
            rows = [*rows, *await self._executor.scan("overdue_heads", heads)]
        return decode(rows, QueuedReceipt)

    async def fail(self, receipts: Sequence[GivenUp], reason: str) -> list[AbandonedReceipt]:
        given = json.dumps([receipt._asdict() for receipt in receipts])
        rows = await self._executor.write("fail_listed", {"input": given, "reason": reason})
        return [replace(row, last_error=without_sealed(row.last_error)) for row in decode(rows, AbandonedReceipt)]
