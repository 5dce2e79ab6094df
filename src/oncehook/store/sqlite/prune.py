"""SQLite's side of pruning: short transactions of the one writer, and a file that shrinks afterwards."""

import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from oncehook.model.receipt import rfc3339
from oncehook.providers.expressions import moment
from oncehook.store.rows import Cursor, Cutoffs
from oncehook.store.sqlite.replay import SqliteReplay

PAGES_AT_ONCE = 256
"""How many pages go back to the disk in one step: a mebibyte."""

FREE_SHARE = 10
"""A tenth of the file may stay free: the next payloads take it, and need not wait for the file to grow."""


class SqlitePrune(SqliteReplay):
    """The verbs of pruning and forgetting."""

    async def prunable(self, receipts: Cutoffs, payloads: Cutoffs) -> list[dict[str, Any]]:
        before = [
            {"source": source, "receipts": rfc3339(receipts[source]), "payloads": rfc3339(payloads[source])}
            for source in receipts
        ]
        return [dict(row) for row in await self.read(self.sql["prunable"], {"before": json.dumps(before)})]

    @asynccontextmanager
    async def pruning(self) -> AsyncIterator["SqlitePruning"]:
        yield SqlitePruning(self)  # the writer is one anyway; a second process only finds less to do

    # -- forgetting -----------------------------------------------------------------------------------------------

    async def bodies(self, after: int, limit: int) -> list[tuple[int, bytes, str]]:
        return [tuple(row) for row in await self.read(self.sql["bodies"], {"after": after, "limit": limit})]

    async def about_object(self, object_id: str) -> list[int]:
        return [row[0] for row in await self.read(self.sql["about_object"], {"object_id": object_id})]

    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int:
        given = {"receipts": json.dumps(list(receipts)), "text": text}

        def erase(connection: sqlite3.Connection) -> int:
            connection.execute("PRAGMA secure_delete = ON").fetchall()  # what is freed is overwritten
            connection.execute("BEGIN IMMEDIATE")
            erased = connection.execute(self.sql["erase_payloads"], given).rowcount
            connection.execute(self.sql["erase_in_effects"], given)
            if text is not None:
                connection.execute(self.sql["erase_in_receipts"], given)
                connection.execute(self.sql["erase_in_attempts"], given)
            connection.execute(self.sql["audit"], {"actor": actor, "action": "forget", "detail": detail})
            connection.execute("COMMIT")
            # The write-ahead log holds the page as it was before, until it is begun anew.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return erased

        return await self.write(erase)


class SqlitePruning:
    """The turn to prune."""

    def __init__(self, store: SqlitePrune) -> None:
        self.store = store
        self.sql = store.sql
        self._all = [
            self.sql["prune_payloads"],
            self.sql["prune_deliveries"],
            self.sql["prune_keys"],
            self.sql["prune_attempts"],
            self.sql["prune_noops"],
            self.sql["prune_receipts"],
        ]

    async def make_days(self) -> None:
        """There are none here."""

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        return []

    async def prune_payloads(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        rows, cursor = await self._old(before, after, limit)
        return await self._delete(
            [row["id"] for row in rows if row["has_payload"]], [self.sql["prune_payloads"]]
        ), cursor

    async def prune_receipts(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        rows, cursor = await self._old(before, after, limit)
        return await self._delete([row["id"] for row in rows], self._all), cursor

    async def _old(self, before: Cutoffs, after: Cursor | None, limit: int) -> tuple[list[sqlite3.Row], Cursor | None]:
        """The next page of finished receipts that are old, read beside the writer."""
        if not before:
            return [], None
        given = {
            "before": json.dumps([{"source": source, "before": rfc3339(time)} for source, time in before.items()]),
            "latest": rfc3339(max(before.values())),
            "after_time": rfc3339(after[0]) if after else "",
            "after_receipt": after[1] if after else 0,
            "limit": limit,
        }
        rows = await self.store.read(self.sql["old_receipts"], given)
        if len(rows) < limit:
            return rows, None
        last = moment(rows[-1]["received_at"])
        assert last is not None
        return rows, (last, rows[-1]["id"])

    async def _delete(self, receipts: list[int], deletes: Sequence[str]) -> dict[str, int]:
        """Delete what belongs to those of `receipts` that still are finished: a replay may have come between."""
        if not receipts:
            return {}

        def delete(connection: sqlite3.Connection) -> dict[str, int]:
            connection.execute("BEGIN IMMEDIATE")
            held = connection.execute(self.sql["hold_old"], {"receipts": json.dumps(receipts)}).fetchall()
            given = {"receipts": json.dumps([id for id, _ in held])}
            for sql in deletes:
                connection.execute(sql, given)
            connection.execute("COMMIT")
            return dict(Counter(source for _, source in held))

        return await self.store.write(delete)

    async def clear_effects(self, before: Cutoffs, limit: int) -> int:
        given = json.dumps([{"source": source, "before": rfc3339(time)} for source, time in before.items()])
        return await self._change(self.sql["clear_effects"], {"before": given, "limit": limit})

    async def prune_effects(self, before: datetime, limit: int) -> int:
        return await self._change(self.sql["prune_effects"], {"before": rfc3339(before), "limit": limit})

    async def _change(self, sql: str, given: dict[str, Any]) -> int:
        return await self.store.write(lambda connection: len(connection.execute(sql, given).fetchall()))

    async def give_back(self) -> bool:
        def give_back(connection: sqlite3.Connection) -> bool:
            free, pages = connection.execute(self.sql["free_pages"]).fetchone()
            if free < PAGES_AT_ONCE or free < pages / FREE_SHARE:
                return False
            connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")  # `execute` would free one page
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # only then is the file shorter
            left = connection.execute(self.sql["free_pages"]).fetchone()[0]
            return bool(left < free)  # a file that was made without auto_vacuum never shrinks

        return await self.store.write(give_back)
