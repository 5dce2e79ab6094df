"""PostgreSQL's side of pruning: receipts in short transactions, payloads by the day.

A day of payloads in which nothing has to stay is taken off with DETACH … CONCURRENTLY, which waits for open readers
without making anybody else wait, and then dropped. Each of its steps may be cut off: the day is marked first, so the
next turn finds what was left half done and finishes it. A day in which something has to stay loses its other rows.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.model.receipt import rfc3339
from oncehook.store import queries
from oncehook.store.postgres.dialect import array
from oncehook.store.postgres.pool import LOST, told
from oncehook.store.postgres.replay import PostgresReplay
from oncehook.store.rows import Cursor, Cutoffs

PRUNE_LOCK = 0x7072756E  # "prun"
STEP_SECONDS = 60.0
DETACH_SECONDS = 30.0
"""How long a detach waits for open readers; after that it is left pending and finished at a later turn."""


class PostgresPrune(PostgresReplay):
    """The verbs of pruning and forgetting."""

    async def prunable(self, receipts: Cutoffs, payloads: Cutoffs) -> list[dict[str, Any]]:
        before = [
            {"source": source, "receipts": rfc3339(receipts[source]), "payloads": rfc3339(payloads[source])}
            for source in receipts
        ]
        return [dict(row) for row in await self._look(self.sql["prunable"], {"before": json.dumps(before)})]

    @asynccontextmanager
    async def pruning(self) -> AsyncIterator["PostgresPruning | None"]:
        """Two connections beside the pool: one holds the turn in an open transaction, the other works outside of it."""
        turn = works = None
        try:
            turn = await self._connect("oncehook prune", STEP_SECONDS)
            await turn.execute("BEGIN")
            ((mine,),) = await _run(turn, self.sql["turn_to_prune"], {"lock": PRUNE_LOCK})
            # That one's portal, and with it a snapshot that our own detach would wait for, stays until the next.
            await turn.execute(self.sql["today"])
            if mine:
                works = await self._connect("oncehook prune", STEP_SECONDS)
                yield PostgresPruning(self, works)
            else:
                yield None
            await turn.execute("COMMIT")  # whoever asks next need not wait until the server sees that we are gone
        except (*LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailable(f"PostgreSQL: {told(error)}") from error
        finally:
            for connection in (works, turn):
                if connection is not None:
                    connection.terminate()

    # -- forgetting -----------------------------------------------------------------------------------------------

    async def bodies(self, after: int, limit: int) -> list[tuple[int, bytes, str]]:
        return [tuple(row) for row in await self._look(self.sql["bodies"], {"after": after, "limit": limit})]

    async def about_object(self, object_id: str) -> list[int]:
        return [row[0] for row in await self._look(self.sql["about_object"], {"object_id": object_id})]

    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int:
        given = {"receipts": array(receipts), "text": text, "actor": actor, "action": "forget", "detail": detail}
        async with self.connection() as connection, connection.transaction():
            erased = await _run(connection, self.sql["erase_payloads"], given)
            await _run(connection, self.sql["erase_in_effects"], given)
            if text is not None:
                await _run(connection, self.sql["erase_in_receipts"], given)
                await _run(connection, self.sql["erase_in_attempts"], given)
            await _run(connection, self.sql["audit"], given)
        await self._vacuum(sorted({row["name"] for row in erased}))
        return len(erased)

    async def _vacuum(self, days: Sequence[str]) -> None:
        """A deleted row is on its page until this; where it takes too long, it is left to autovacuum."""
        try:
            connection = await self._connect("oncehook prune", STEP_SECONDS)
            try:
                for day in days:
                    await connection.execute(self.sql["vacuum_day"].format(name=day))
            finally:
                connection.terminate()
        except (*LOST, asyncpg.PostgresError):
            pass


async def _run(connection: Any, sql: str, given: dict[str, Any], **options: Any) -> list[Any]:
    text, names = queries.numbered(sql)
    return list(await connection.fetch(text, *(given[name] for name in names), **options))


def _before(cutoffs: Cutoffs) -> str:
    return json.dumps([{"source": source, "before": rfc3339(time)} for source, time in cutoffs.items()])


class PostgresPruning:
    """The turn to prune, on a connection of its own."""

    def __init__(self, store: PostgresPrune, connection: Any) -> None:
        self.store = store
        self.sql = store.sql
        self.connection = connection
        self._all = [
            self.sql["prune_payloads"],
            self.sql["prune_deliveries"],
            self.sql["prune_keys"],
            self.sql["prune_attempts"],
            self.sql["prune_noops"],
            self.sql["prune_receipts"],
        ]

    async def make_days(self) -> None:
        await self.store._make_partitions()

    # -- days -----------------------------------------------------------------------------------------------------

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        dropped = []
        today: date = await self.connection.fetchval(self.sql["today"])
        days = await self.connection.fetch(self.sql["payload_days"])
        for row in sorted(days, key=lambda row: not row["is_pending"]):  # only one may be pending at a time
            if await self._may_go(row, today, payloads) and await self._drop(row):
                dropped.append(row["name"])
        return dropped

    async def _may_go(self, row: Any, today: date, payloads: Cutoffs) -> bool:
        if row["is_pending"] or row["is_detached"]:
            return True  # it was found so before, and nothing can have been added since
        if row["day"] >= today - timedelta(days=1):
            return False  # a claim may be under way that began before midnight
        given = {"before": _before(payloads), "day": row["day"]}
        stays = await _run(self.connection, self.sql["day_must_stay"], given, timeout=STEP_SECONDS * 10)
        return not stays[0][0]

    async def _drop(self, row: Any) -> bool:
        """Detach and drop; False if readers would not end, and it is left for a later turn."""
        steps = [self.sql["drop_day"]]
        if row["is_pending"]:
            steps = [self.sql["finish_detaching"], *steps]
        elif not row["is_detached"]:
            steps = [self.sql["mark_day"], self.sql["detach_day"], *steps]
        try:
            for step in steps:
                await self.connection.execute(step.format(name=row["name"]), timeout=DETACH_SECONDS)
        except (TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
            return False
        except asyncpg.ObjectNotInPrerequisiteStateError:  # another day's detach is pending
            return False
        return True

    # -- rows -----------------------------------------------------------------------------------------------------

    async def prune_payloads(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        rows, cursor = await self._old(before, after, limit)
        return await self._delete([row for row in rows if row["has_payload"]], [self.sql["prune_payloads"]]), cursor

    async def prune_receipts(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        rows, cursor = await self._old(before, after, limit)
        return await self._delete(rows, self._all), cursor

    async def _old(self, before: Cutoffs, after: Cursor | None, limit: int) -> tuple[list[Any], Cursor | None]:
        """The next page of finished receipts that are old."""
        if not before:
            return [], None
        given = {
            "before": _before(before),
            "latest": max(before.values()),
            "after_time": after[0] if after else datetime(1970, 1, 1, tzinfo=UTC),
            "after_receipt": after[1] if after else 0,
            "limit": limit,
        }
        rows = await _run(self.connection, self.sql["old_receipts"], given)
        return rows, (rows[-1]["received_at"], rows[-1]["id"]) if len(rows) == limit else None

    async def _delete(self, rows: Sequence[Any], deletes: Sequence[str]) -> dict[str, int]:
        """Delete what belongs to those of `rows` that still are finished: a replay may have come between."""
        if not rows:
            return {}
        days = sorted({row["day"] for row in rows})
        async with self.connection.transaction():
            held = await _run(self.connection, self.sql["hold_old"], {"receipts": array(row["id"] for row in rows)})
            given = {"receipts": array(row["id"] for row in held), "days": array(days)}
            for sql in deletes:
                await _run(self.connection, sql, given)
        return dict(Counter(row["source"] for row in held))

    async def clear_effects(self, before: Cutoffs, limit: int) -> int:
        given = {"before": _before(before), "limit": limit}
        return len(await _run(self.connection, self.sql["clear_effects"], given))

    async def prune_effects(self, before: datetime, limit: int) -> int:
        return len(await _run(self.connection, self.sql["prune_effects"], {"before": before, "limit": limit}))

    async def give_back(self) -> bool:
        return False  # a dropped day is back at once; the rest is autovacuum's
