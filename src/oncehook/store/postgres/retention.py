"""Retention on PostgreSQL: receipts in short transactions, payloads by the day.

If no payload of a day is needed, its partition is detached with DETACH … CONCURRENTLY and dropped. That waits for open
readers without blocking other sessions. Each step may be interrupted: the day is flagged first, so the next run finds
and finishes a day that was left half done. If a day has payloads that are still needed, its other rows are deleted.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import date, timedelta
from typing import Any

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.store.executor import Executor, Work
from oncehook.store.leadership import Leadership, SqlLeadershipStore, hold
from oncehook.store.postgres.executor import PostgresExecutor, fetch, run_on
from oncehook.store.postgres.pool import CONNECTION_LOST, PostgresPool, error_summary
from oncehook.store.queries import number_parameters
from oncehook.store.retention import PRUNE, PRUNE_TERM, SqlPruning, SqlRetentionStore, before_json
from oncehook.store.rows import Cutoffs

STEP_SECONDS = 60.0
SCAN_SECONDS = 10 * STEP_SECONDS
"""For how many seconds a query for the receipts of a whole day may run."""

SCAN_TERM = SCAN_SECONDS + PRUNE_TERM
"""The term of the leader before such a query."""

DETACH_SECONDS = 30.0
"""For how many seconds a detach waits for open readers. After that a later run finishes it."""


class PostgresRetentionStore(SqlRetentionStore):
    """Implements `RetentionStore`."""

    def __init__(self, pool: PostgresPool, executor: Executor) -> None:
        super().__init__(executor)
        self._pool = pool
        self._leaderships = SqlLeadershipStore(executor)

    @asynccontextmanager
    async def start_pruning(self) -> AsyncIterator[SqlPruning | None]:
        """Prune on a connection outside the pool."""
        async with self._leaderships.taken(PRUNE, PRUNE_TERM) as leadership:
            if leadership is None:
                yield None
                return
            connection = None
            try:
                connection = await self._pool.connect("oncehook prune", STEP_SECONDS)
                yield PostgresPruning(self._pool, connection, leadership)
            except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                raise StoreUnavailable(f"PostgreSQL: {error_summary(error)}") from error
            finally:
                if connection is not None:
                    connection.terminate()

    async def _run_erasing(self, work: Work[list[Any]]) -> int:
        erased = await self._executor.transaction(work)
        await self._vacuum(sorted({row["name"] for row in erased}))
        return len(erased)

    async def _vacuum(self, days: Sequence[str]) -> None:
        """Remove deleted rows from their pages. If that takes too long, autovacuum does it later."""
        try:
            connection = await self._pool.connect("oncehook prune", STEP_SECONDS)
            try:
                for day in days:
                    await connection.execute(self._pool.sql["vacuum_day"].format(name=day))
            finally:
                connection.terminate()
        except (*CONNECTION_LOST, asyncpg.PostgresError):
            pass


class PostgresPruning(SqlPruning):
    """Implements `Pruning`, on a dedicated connection."""

    def __init__(self, pool: PostgresPool, connection: Any, leadership: Leadership) -> None:
        super().__init__(PostgresExecutor(lambda: nullcontext(connection)), leadership)
        self._pool = pool
        self._connection = connection

    async def create_days(self) -> None:
        await self._pool.create_partitions()

    # -- days -----------------------------------------------------------------------------------------------------

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        dropped = []
        today: date = await self._connection.fetchval(self._pool.sql["today"])
        days = await self._connection.fetch(self._pool.sql["payload_days"])
        for row in sorted(days, key=lambda row: not row["is_pending"]):  # only one detach may be pending at a time
            await self.extend(SCAN_TERM)
            if await self._is_droppable(row, today, payloads) and await self._drop(row, payloads):
                dropped.append(row["name"])
        return dropped

    async def _is_droppable(self, row: Any, today: date, payloads: Cutoffs) -> bool:
        if row["is_pending"] or row["is_detached"]:
            return True  # an earlier run found it unneeded
        if row["day"] >= today - timedelta(days=1):
            return False  # a claim that began before midnight may still be running
        parameters = {"before": before_json(payloads), "day": row["day"]}
        rows = await fetch(self._connection, "day_is_needed", parameters, timeout=SCAN_SECONDS)
        return not rows[0][0]

    async def _drop(self, row: Any, payloads: Cutoffs) -> bool:
        """Detach and drop a day. Returns False if readers did not end in time; a later run tries again.

        Also returns False if a replay or a backfill began to need the day before it was detached. It is attached again.
        """
        steps = []
        if row["is_pending"]:
            steps = ["finish_detach"]
        elif not row["is_detached"]:
            steps = ["flag_day", "detach_day"]
        try:
            for step in steps:
                await self._run_step(step, row)
            return await self._finish(row, payloads)
        except (TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
            return False
        except asyncpg.ObjectNotInPrerequisiteStateError:  # another day's detach is pending
            return False

    async def _finish(self, row: Any, payloads: Cutoffs) -> bool:
        """Drop a detached day, or attach it again if it is needed after all. Returns whether it was dropped.

        The check and the drop are one fenced transaction: a former leader could otherwise drop a day that its
        successor has attached again.
        """
        async with self._connection.transaction():
            await hold(run_on(self._connection), self._leadership, SCAN_TERM)
            is_needed = await self._is_needed(row, payloads)
            await self._run_step("attach_day" if is_needed else "drop_day", row)
        return not is_needed

    async def _run_step(self, step: str, row: Any) -> None:
        """Run a step. Detaching cannot be fenced, but a day that is detached too early is attached again."""
        next_day = row["day"] + timedelta(days=1)
        sql = self._pool.sql[step].format(name=row["name"], day=row["day"], next_day=next_day)
        await self._connection.execute(sql, timeout=DETACH_SECONDS)

    async def _is_needed(self, row: Any, payloads: Cutoffs) -> bool:
        """Return whether a detached day is needed after all."""
        sql, _ = number_parameters(self._pool.sql["detached_day_is_needed"].format(name=row["name"]))
        values = (before_json(payloads), row["day"])
        return bool(await self._connection.fetchval(sql, *values, timeout=SCAN_SECONDS))

    async def free_space(self) -> bool:
        return False  # dropping a day frees its space, and autovacuum does the rest
