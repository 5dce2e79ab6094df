"""Corrects due times that were written by a clock that was ahead and has gone back since.

Every statement that schedules an attempt writes the current time to `leased_at`. If `leased_at` is in the future, the
clock was set back, and the receipt or effect would wait for as long as the clock was ahead. An effect that was not
attempted yet has `created_at` for that.
"""

from oncehook.store.executor import Executor

FOUND, PAGE = 50_000, 1_000
"""How many rows a search returns at most, and how many are changed at once. A claim on SQLite waits for one change."""


class SqlDueTimeStore:
    """Implements `DueTimeStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def correct(self) -> int:
        receipts = await self._make_due("receipts_scheduled_ahead", "make_receipts_due")
        effects = await self._make_due("effects_scheduled_ahead", "make_effects_due")
        pauses = len(await self._executor.write("move_pauses_back"))
        await self._executor.write("move_workers_back")
        return receipts + effects + pauses

    async def _make_due(self, find: str, change: str) -> int:
        """Change the rows in pages, until there are no more. The search only reads, so no claim waits for it."""
        count = 0
        while True:
            ids = [row[0] for row in await self._executor.scan(find, {"limit": FOUND})]
            changed = 0
            for start in range(0, len(ids), PAGE):
                page = self._executor.dialect.array(ids[start : start + PAGE])
                changed += len(await self._executor.write(change, {"ids": page}))
            count += changed
            if len(ids) < FOUND or not changed:  # other processes have changed or locked the rest
                return count
