"""Background replays: their progress in this process and, from the audit log, in any other."""

import asyncio

import pytest

from oncehook import Inbox
from oncehook.operations import replay_runs
from oncehook.operations.replay import Outcomes
from oncehook.operations.replay_runs import ReplayRun, ReplayRuns
from oncehook.store.rows import Selection
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def dead_letters(inbox: Inbox, rows: Rows, number: int) -> None:
    await claim(inbox._runtime.store, *(f"evt_{n}" for n in range(number)))
    rows("UPDATE webhook_receipts SET status = 'failed'")


async def finished(runs: ReplayRuns, run: str) -> ReplayRun:
    """Wait until a run has ended, and return it."""

    async def has_ended() -> bool:
        progress = await runs.get(run)
        return progress is not None and progress.state != "running"

    await eventually(has_ended, "the replay ends")
    progress = await runs.get(run)
    assert progress is not None
    return progress


async def test_run_counts_its_events_and_their_results(inbox: Inbox, rows: Rows) -> None:
    await dead_letters(inbox, rows, 3)
    runs = ReplayRuns(inbox._runtime.store)
    started = await runs.start(Selection(), "ann", matched=3)
    progress = await finished(runs, started.run)
    assert progress.as_json() == {
        "run": started.run, "actor": "ann", "state": "done", "matched": 3, "looked_at": 3, "replayed": 3,
        "handled": 0, "failed": 0, "waiting": 3, "left": {}, "error": None, "started_at": None,
    }  # fmt: skip
    assert not progress.is_over, "its events still wait for a worker"
    rows("UPDATE webhook_receipts SET status = 'processed'")
    progress = await finished(runs, started.run)
    assert progress.outcomes == Outcomes(handled=3) and progress.is_over


async def test_another_process_reads_the_run_from_the_audit_log(inbox: Inbox, rows: Rows) -> None:
    await dead_letters(inbox, rows, 2)
    mine, other = ReplayRuns(inbox._runtime.store), ReplayRuns(inbox._runtime.store)
    started = await mine.start(Selection(), "ann", matched=2)
    await finished(mine, started.run)
    progress = await finished(other, started.run)
    assert (progress.actor, progress.state, progress.matched, progress.done.count) == ("ann", "done", 2, 2)
    assert progress.started_at is not None
    assert await other.get("no-such-run") is None


async def test_stopped_run_says_so_and_has_replayed_whole_batches(inbox: Inbox, rows: Rows) -> None:
    await dead_letters(inbox, rows, 4)
    runs = ReplayRuns(inbox._runtime.store)
    started = await runs.start(Selection(), "ann", matched=4, rate=0.01)  # the second event would wait 100 s
    await eventually(lambda: started.done.count == 1, "the first event is replayed")
    await runs.stop()
    progress = await finished(ReplayRuns(inbox._runtime.store), started.run)
    assert (started.state, started.error) == ("stopped", "the service was stopped")
    assert (progress.state, progress.done.count) == ("stopped", 1), "the audit log must record the interruption"
    assert rows("SELECT count(*) FROM webhook_receipts WHERE status = 'failed'") == [(3,)]


async def test_unavailable_database_stops_the_run(inbox: Inbox, rows: Rows) -> None:
    await dead_letters(inbox, rows, 3)
    store = inbox._runtime.store
    started = await ReplayRuns(store).start(Selection(), "ann", matched=3, rate=2.0)
    await eventually(lambda: started.done.count == 1, "the first event is replayed")
    await store.close()
    await eventually(lambda: started.state == "stopped", "the run stops")
    await store.open()
    assert "not open" in str(started.error)
    assert rows("SELECT count(*) FROM webhook_receipts WHERE status = 'failed'") == [(2,)]


async def test_only_some_finished_runs_are_remembered(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_runs, "FINISHED_RUNS", 2)
    runs = ReplayRuns(inbox._runtime.store)
    names = []
    for _ in range(4):
        started = await runs.start(Selection(), "ann", matched=0)
        await finished(runs, started.run)
        names.append(started.run)
        await asyncio.gather(*runs._tasks)
    assert list(runs._runs) == names[1:], "the oldest finished run is dropped when a new one starts"
    assert await runs.get(names[0]) is not None, "the audit log still has it"
