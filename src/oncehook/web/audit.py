"""Pages of the audit log, shared by the dashboard and the API."""

import json

from msgspec.structs import replace

from oncehook.model.rows import AuditEntry
from oncehook.web.page import Context, Problem


async def list_audit(context: Context, before: str | None, limit: int) -> tuple[list[AuditEntry], int | None]:
    """Return a page of entries, newest first, and the cursor of the next page."""
    if before and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise Problem(400, "bad_cursor", "The cursor is not valid. Start at the first page.")
    rows = await context.store.operations.audited(before=int(before) if before else None, limit=limit + 1)
    entries = [await _with_progress(context, row) if row.action == "replay_started" else row for row in rows[:limit]]
    return entries, rows[limit - 1].id if len(rows) > limit else None


async def _with_progress(context: Context, row: AuditEntry) -> AuditEntry:
    """Add to the entry of a bulk replay how many events its batches replayed, and whether it has ended."""
    batches = {batch.action: batch for batch in await context.store.operations.audited_run(row.detail["run"])}
    count = batches["replay"].number if "replay" in batches else 0
    state = json.loads(batches["replay_ended"].detail or "{}")["state"] if "replay_ended" in batches else "running"
    return replace(row, action="replay", detail={**row.detail, "count": count, "state": state})
