"""Reads what `oncehook fsck` checks: the rows of one window of a table that contradict a guarantee. Writes nothing.

A window is the rows between two keys. Each statement reads one window and ends, so no transaction stays open, and no
row is locked.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from oncehook.store.decode import decode
from oncehook.store.executor import Executor
from oncehook.store.rows import (
    AuditedReplay,
    FsckBody,
    FsckRow,
    FsckWindow,
    ReplayCount,
    SchemaColumn,
    SchemaObject,
)

WINDOWS = {
    "receipts": "fsck_window_receipts",
    "payloads": "fsck_window_payloads",
    "attempts": "fsck_window_attempts",
    "keys": "fsck_window_keys",
    "noops": "fsck_window_noops",
    "deliveries": "fsck_window_deliveries",
    "effects": "fsck_window_effects",
    "entities": "fsck_window_entities",
}
"""The statement that finds the next window of each table."""

STATEMENTS = {
    "payload_missing": "fsck_payload_missing",
    "state": "fsck_state",
    "lease_missing": "fsck_lease_missing",
    "lease_expired": "fsck_lease_expired",
    "overtaken": "fsck_overtaken",
    "attempts": "fsck_attempts",
    "unique": "fsck_unique",
    "copy": "fsck_copy",
    "payload_orphan": "fsck_payload_orphan",
    "payload_object": "fsck_payload_object",
    "attempt_orphan": "fsck_attempt_orphan",
    "key_orphan": "fsck_key_orphan",
    "noop_orphan": "fsck_noop_orphan",
    "flag": "fsck_flag",
    "effect_state": "fsck_effect_state",
    "effect_expired": "fsck_effect_expired",
    "effect_unprocessed": "fsck_effect_unprocessed",
    "effect_orphan": "fsck_effect_orphan",
    "effect_unique": "fsck_effect_unique",
    "entity": "fsck_entity",
    "serial": "fsck_serial",
    "rejections": "fsck_rejections",
    "partitions": "fsck_partitions",
}
"""The statement of each check."""

START: Mapping[str, Any] = {"after": 0}
"""The cursor before the first row of a table."""

STARTS: Mapping[str, Mapping[str, Any]] = {"entities": {"after_scope": "", "after_kind": "", "after": ""}}
"""The cursors of tables whose key is not one number."""


class SqlFsckStore:
    """Implements `FsckStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def window(
        self, table: str, after: FsckWindow | None, limit: int, *, source: str | None, since: datetime | None
    ) -> FsckWindow | None:
        start = STARTS.get(table, START) if after is None else after.end
        parameters = {**start, "limit": limit, **self._filter(source, since)}
        rows = [dict(row) for row in await self._executor.read(WINDOWS[table], parameters)]
        if not rows or not rows[0]["rows"]:
            return None
        last = {name: value for name, value in rows[0].items() if name.startswith("last")}
        return FsckWindow({**start, **last, **self._filter(source, since)}, rows[0]["number"])

    async def find(self, check: str, window: FsckWindow | None, **parameters: Any) -> list[FsckRow]:
        bounds = {} if window is None else window.parameters
        return decode(await self._executor.read(STATEMENTS[check], {**bounds, **parameters}), FsckRow)

    async def bodies(self, window: FsckWindow) -> list[FsckBody]:
        return decode(await self._executor.read("fsck_bodies", window.parameters), FsckBody)

    async def replayed(self, window: FsckWindow) -> list[ReplayCount]:
        return decode(await self._executor.read("fsck_replayed", window.parameters), ReplayCount)

    async def audited_replays(self, after: int, limit: int) -> list[AuditedReplay]:
        rows = await self._executor.read("fsck_audited_replays", {"after": after, "limit": limit})
        return decode(rows, AuditedReplay)

    async def objects(self) -> list[SchemaObject]:
        return decode(await self._executor.read("fsck_objects"), SchemaObject)

    async def columns(self) -> list[SchemaColumn]:
        return decode(await self._executor.read("fsck_columns"), SchemaColumn)

    def _filter(self, source: str | None, since: datetime | None) -> dict[str, Any]:
        parameters = {"source": source, "since": self._executor.dialect.time(since)}
        return {name: value for name, value in parameters.items() if value is not None}
