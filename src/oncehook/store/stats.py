"""Numbers for operators: dead letters, lags, rates and counts."""

from datetime import datetime

from oncehook.model.rows import DeadLetters, DuplicateCount, LastReceived, Rate, ReceiptCount, SourceCount, SourceTotals
from oncehook.store.decode import decode
from oncehook.store.executor import Executor


class Stats:
    """Implements `StatStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def counts(self) -> list[ReceiptCount]:
        return decode(await self._executor.read("counts"), ReceiptCount)

    async def duplicate_counts(self) -> list[DuplicateCount]:
        return decode(await self._executor.read("counts_duplicates"), DuplicateCount)

    async def dead_letters(self, limit: int) -> list[DeadLetters]:
        return decode(await self._executor.scan("dead", {"limit": limit}), DeadLetters)

    async def lags(self) -> dict[str, float]:
        return {row["source"]: row["lag"] for row in await self._executor.scan("lags")}

    async def rates(self, since: datetime, seconds: int) -> list[Rate]:
        given = {"since": self._executor.dialect.time(since), "seconds": seconds}
        return decode(await self._executor.read("rates", given), Rate)

    async def standing(self, most: int) -> SourceTotals:
        given = {"most": most}
        waiting = decode(await self._executor.read("waiting", given), SourceCount)
        dead = decode(await self._executor.read("dead_letters", given), SourceCount)
        last = decode(await self._executor.read("last_received", given), LastReceived)
        return SourceTotals(
            waiting={row.source: row.number for row in waiting},
            dead_letters={row.source: row.number for row in dead},
            last_received_at={row.source: row.received_at for row in last},
        )

    async def pulse(self) -> str:
        return "/".join(str(value) for value in tuple((await self._executor.read("pulse"))[0]))
