"""Statistics for operators: dead letters, lags, rates and counts."""

from datetime import datetime

from msgspec.structs import replace

from oncehook.model.statistics import (
    DeadLetters,
    DuplicateCount,
    Lag,
    LastReceived,
    Rate,
    ReceiptCount,
    SourceTotals,
    WorkCount,
)
from oncehook.store.decode import decode
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor


class SqlStatStore:
    """Implements `StatStore` on every database."""

    def __init__(self, executor: Executor, encryption: Encryption) -> None:
        self._executor = executor
        self._encryption = encryption

    async def counts(self) -> list[ReceiptCount]:
        return decode(await self._executor.read("receipt_counts"), ReceiptCount)

    async def duplicate_counts(self) -> list[DuplicateCount]:
        return decode(await self._executor.read("duplicate_counts"), DuplicateCount)

    async def dead_letters(self, limit: int) -> list[DeadLetters]:
        rows = decode(await self._executor.scan("dead_letter_groups", {"limit": limit}), DeadLetters)
        return [replace(row, last_error=self._encryption.open_error(row.last_error, row.source)) for row in rows]

    async def lags(self) -> list[Lag]:
        return decode(await self._executor.scan("lags"), Lag)

    async def rates(self, since: datetime, seconds: int) -> list[Rate]:
        parameters = {"since": self._executor.dialect.time(since), "seconds": seconds}
        return decode(await self._executor.read("rates", parameters), Rate)

    async def source_totals(self, most: int) -> SourceTotals:
        parameters = {"most": most}
        last = decode(await self._executor.read("last_received", parameters), LastReceived)
        return SourceTotals(
            waiting=decode(await self._executor.read("waiting_counts", parameters), WorkCount),
            dead_letters=decode(await self._executor.read("dead_letter_counts", parameters), WorkCount),
            last_received_at={row.source: row.received_at for row in last},
        )

    async def change_token(self) -> str:
        return "/".join(str(value) for value in tuple((await self._executor.read("change_token"))[0]))
