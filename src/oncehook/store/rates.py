"""Rates of consumers: one token bucket per consumer in the database, so that all processes share it.

A bucket fills with `rate` tokens a second, up to `burst`. Each leased receipt costs one token. Only the clock of the
database counts. If that clock is set back, the bucket keeps its tokens and fills from the new time on.
"""

from functools import partial
from typing import Any

from oncehook.store.executor import Executor, Run
from oncehook.store.rows import Tokens


class SqlRateStore:
    """Implements `RateStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def take(self, consumer: str, wanted: int, rate: float, burst: float) -> Tokens:
        parameters = {"consumer": consumer, "wanted": wanted, "rate": rate, "burst": burst}
        rows = await self._take(parameters)
        if not rows:
            await self._executor.write("create_bucket", {"consumer": consumer, "burst": burst})
            rows = await self._take(parameters)
        granted, available = rows[0][:2]
        return Tokens(granted, max(0.0, 1 - (available - granted)) / rate)

    async def _take(self, parameters: dict[str, Any]) -> list[Any]:
        """Take tokens in one statement, or in SQLite in a transaction that no other part of the process can delay."""
        if self._executor.dialect.single_writer:
            return await self._executor.transaction(partial(_take_in_steps, parameters))
        return await self._executor.write("take_tokens", parameters)

    async def refund(self, consumer: str, tokens: int, burst: float) -> None:
        await self._executor.write("refund_tokens", {"consumer": consumer, "tokens": float(tokens), "burst": burst})


async def _take_in_steps(parameters: dict[str, Any], run: Run) -> list[Any]:
    rows = await run("take_tokens", parameters)
    for granted, available, at, is_earlier in rows:
        if granted or is_earlier:
            left = available - granted
            await run("set_tokens", {"consumer": parameters["consumer"], "tokens": left, "at": at})
    return rows
