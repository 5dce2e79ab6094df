"""The audit log, one page at a time, for the pages and the API."""

import json

from msgspec.structs import replace

from oncehook.model.rows import AuditEntry
from oncehook.web.page import Context, Problem


async def look(context: Context, before: str | None, limit: int) -> tuple[list[AuditEntry], int | None]:
    """A page, and where the next one begins."""
    if before and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise Problem(400, "bad_cursor", "The cursor is not one of ours: start at the first page.")
    rows = await context.store.operations.audited(before=int(before) if before else None, limit=limit + 1)
    told = [await _summed(context, row) if row.action == "replay_started" else row for row in rows[:limit]]
    return told, rows[limit - 1].id if len(rows) > limit else None


async def _summed(context: Context, row: AuditEntry) -> AuditEntry:
    """A replay of many as one row: how many of its batches moved, and whether it came to its end."""
    batches = {batch.action: batch for batch in await context.store.operations.audited_run(row.detail["run"])}
    count = batches["replay"].number if "replay" in batches else 0
    state = json.loads(batches["replay_ended"].detail or "{}")["state"] if "replay_ended" in batches else "running"
    return replace(row, action="replay", detail={**row.detail, "count": count, "state": state})
