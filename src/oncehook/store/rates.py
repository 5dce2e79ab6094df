"""Rates of consumers: one token bucket per consumer in the database, so that all processes share it.

A bucket fills with `rate` tokens a second, up to `burst`. Each leased receipt costs one token. Only the clock of the
database counts. If that clock is set back, the bucket keeps its tokens and fills from the new time on.
"""

from oncehook.store.executor import Executor, Run
from oncehook.store.rows import Tokens


class SqlRateStore:
    """Implements `RateStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def take(self, consumer: str, wanted: int, rate: float, burst: float) -> Tokens:
        async def work(run: Run) -> Tokens:
            bucket = await run("lock_bucket", {"consumer": consumer})
            if not bucket:
                await run("create_bucket", {"consumer": consumer, "tokens": burst})
                bucket = await run("lock_bucket", {"consumer": consumer})
            tokens, elapsed, at = bucket[0]
            available = min(burst, tokens + max(elapsed, 0.0) * rate)
            granted = min(wanted, int(available))
            if granted or elapsed < 0:
                await run("set_tokens", {"consumer": consumer, "tokens": available - granted, "at": at})
            return Tokens(granted, max(0.0, 1 - (available - granted)) / rate)

        return await self._executor.transaction(work)

    async def refund(self, consumer: str, tokens: int, burst: float) -> None:
        await self._executor.write("refund_tokens", {"consumer": consumer, "tokens": float(tokens), "burst": burst})
