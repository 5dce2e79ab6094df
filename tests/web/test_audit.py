"""Pages of the audit log, and bulk replays as one entry."""

import pytest

from oncehook import Inbox
from oncehook.model.receipt import Filter
from oncehook.store.rows import Selection
from oncehook.testing import drain
from oncehook.web.audit import list_audit
from oncehook.web.page import Context, Problem
from tests.support.dashboard import both_databases, send
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@both_databases
async def test_pages_follow_each_other_newest_first(context: Context) -> None:
    for n in range(5):
        await context.store.operations.audit("me", "test", {"n": n})
    first, cursor = await list_audit(context, None, 3)
    assert cursor is not None
    second, end = await list_audit(context, str(cursor), 3)
    assert [entry.detail["n"] for entry in first + second] == [4, 3, 2, 1, 0] and end is None


@pytest.mark.parametrize("cursor", ["x", "-1", "1" * 30])
async def test_invalid_cursor_is_a_problem(context: Context, cursor: str) -> None:
    with pytest.raises(Problem, match="The cursor is not valid"):
        await list_audit(context, cursor, 3)


@both_databases
async def test_bulk_replay_is_one_entry_with_its_progress(shop: Inbox, context: Context) -> None:
    for n in range(3):
        await send(shop, f"evt_{n}", "charge.failed")
    await drain(shop)
    run = await context.runs.start(Selection(Filter(status="failed")), "me", 3)
    await eventually(lambda: run.state == "done", "the replay ends")
    entries, _ = await list_audit(context, None, 50)
    (entry,) = [entry for entry in entries if entry.action == "replay"]
    assert (entry.actor, entry.detail["count"], entry.detail["state"]) == ("me", 3, "done")
