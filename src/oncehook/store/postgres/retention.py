"""Retention on PostgreSQL: receipts in short transactions, payloads by the day.

A day of payloads in which nothing has to stay is taken off with DETACH … CONCURRENTLY, which waits for open readers
without making anybody else wait, and then dropped. Each of its steps may be cut off: the day is marked first, so the
next turn finds what was left half done and finishes it. A day in which something has to stay loses its other rows.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import date, timedelta
from typing import Any

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.store.executor import Executor
from oncehook.store.postgres.executor import PostgresExecutor, fetch
from oncehook.store.postgres.pool import LOST, PostgresPool, told
from oncehook.store.retention import Pruning, Retention, before_json
from oncehook.store.rows import Cutoffs

PRUNE_LOCK = 0x7072756E  # "prun"
STEP_SECONDS = 60.0
DETACH_SECONDS = 30.0
"""How long a detach waits for open readers; after that it is left pending and finished at a later turn."""


class PostgresRetention(Retention):
    """Implements `RetentionStore`."""

    def __init__(self, pool: PostgresPool, executor: Executor) -> None:
        super().__init__(executor)
        self._pool = pool

    @asynccontextmanager
    async def pruning(self) -> AsyncIterator[Pruning | None]:
        """Two connections beside the pool: one holds the turn in an open transaction, the other works outside of it."""
        turn = works = None
        try:
            turn = await self._pool.connect("oncehook prune", STEP_SECONDS)
            await turn.execute("BEGIN")
            ((mine,),) = await fetch(turn, "turn_to_prune", {"lock": PRUNE_LOCK})
            # That one's portal, and with it a snapshot that our own detach would wait for, stays until the next.
            await turn.execute(self._pool.sql["today"])
            if mine:
                works = await self._pool.connect("oncehook prune", STEP_SECONDS)
                yield PostgresPruning(self._pool, works)
            else:
                yield None
            await turn.execute("COMMIT")  # whoever asks next need not wait until the server sees that we are gone
        except (*LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {told(error)}") from error
        finally:
            for connection in (works, turn):
                if connection is not None:
                    connection.terminate()

    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int:
        erased = await self._executor.transaction(self._erasing(receipts, text, actor, detail))
        await self._vacuum(sorted({row["name"] for row in erased}))
        return len(erased)

    async def _vacuum(self, days: Sequence[str]) -> None:
        """A deleted row is on its page until this; where it takes too long, it is left to autovacuum."""
        try:
            connection = await self._pool.connect("oncehook prune", STEP_SECONDS)
            try:
                for day in days:
                    await connection.execute(self._pool.sql["vacuum_day"].format(name=day))
            finally:
                connection.terminate()
        except (*LOST, asyncpg.PostgresError):
            pass


class PostgresPruning(Pruning):
    """Implements `Pruning` of the protocols, on a connection of its own."""

    def __init__(self, pool: PostgresPool, connection: Any) -> None:
        super().__init__(PostgresExecutor(lambda: nullcontext(connection)))
        self._pool = pool
        self._connection = connection

    async def make_days(self) -> None:
        await self._pool.make_partitions()

    # -- days -----------------------------------------------------------------------------------------------------

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        dropped = []
        today: date = await self._connection.fetchval(self._pool.sql["today"])
        days = await self._connection.fetch(self._pool.sql["payload_days"])
        for row in sorted(days, key=lambda row: not row["is_pending"]):  # only one may be pending at a time
            if await self._may_go(row, today, payloads) and await self._drop(row):
                dropped.append(row["name"])
        return dropped

    async def _may_go(self, row: Any, today: date, payloads: Cutoffs) -> bool:
        if row["is_pending"] or row["is_detached"]:
            return True  # it was found so before, and nothing can have been added since
        if row["day"] >= today - timedelta(days=1):
            return False  # a claim may be under way that began before midnight
        given = {"before": before_json(payloads), "day": row["day"]}
        stays = await fetch(self._connection, "day_must_stay", given, timeout=STEP_SECONDS * 10)
        return not stays[0][0]

    async def _drop(self, row: Any) -> bool:
        """Detach and drop; False if readers would not end, and it is left for a later turn."""
        steps = [self._pool.sql["drop_day"]]
        if row["is_pending"]:
            steps = [self._pool.sql["finish_detaching"], *steps]
        elif not row["is_detached"]:
            steps = [self._pool.sql["mark_day"], self._pool.sql["detach_day"], *steps]
        try:
            for step in steps:
                await self._connection.execute(step.format(name=row["name"]), timeout=DETACH_SECONDS)
        except (TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
            return False
        except asyncpg.ObjectNotInPrerequisiteStateError:  # another day's detach is pending
            return False
        return True

    async def give_back(self) -> bool:
        return False  # a dropped day is back at once; the rest is autovacuum's
