"""The prune loop runs in the background and survives an unavailable database."""

from typing import Any

import pytest

import oncehook.operations.prune as prune_module
from oncehook.config.settings import Horizon
from oncehook.operations.prune import PruneLoop
from oncehook.store.store import Store
from tests.support.ages import set_age
from tests.support.events import Rows
from tests.support.retention import DAY, KEEP_30, events_with_payload, stored_events
from tests.support.servers import run_sql
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_prune_loop_prunes_repeatedly_and_logs_it(
    store: Store, database: str, rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    await claim(store, "evt_1", "evt_2")
    set_age(database, "evt_1", 40, "processed")
    prune_loop = PruneLoop(store, KEEP_30, first=0.0, every=0.02)
    prune_loop.start()
    await eventually(lambda: emitted)
    assert stored_events(rows) == ["evt_2"]
    set_age(database, "evt_2", 40, "processed")
    await eventually(lambda: len(emitted) > 1)
    await prune_loop.stop()
    assert stored_events(rows) == []
    assert [(line, facts["receipts"]) for line, facts in emitted] == [("pruned", 1), ("pruned", 1)]


async def test_prune_loop_continues_after_the_database_was_unavailable(
    store: Store, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    await store.close()
    prune_loop = PruneLoop(store, KEEP_30, first=0.0, every=0.01)
    prune_loop.start()
    await eventually(lambda: len(emitted) > 1)
    await store.open()
    await eventually(lambda: prune_loop._runs > 1)
    await prune_loop.stop()
    assert {line for line, _ in emitted} == {"prune_database_unavailable"}


async def test_prune_loop_scans_old_payloads_again_after_some_runs(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, emitted: Any
) -> None:
    """A replayed dead letter is older than the payloads that were already scanned."""
    monkeypatch.setattr(prune_module, "FULL_SCAN_EVERY", 3)
    await claim(store, "evt_1")
    set_age(database, "evt_1", 20, "failed")
    prune_loop = PruneLoop(store, [Horizon("stripe", 30 * DAY, 3600)])
    await prune_loop.prune_once()
    run_sql(database, "UPDATE webhook_receipts SET status = 'processed'")
    while events_with_payload(rows):
        assert prune_loop._runs < 5
        await prune_loop.prune_once()


async def test_payloads_of_a_source_that_keeps_them_longer_are_pruned_in_the_next_run(
    store: Store, database: str, rows: Rows
) -> None:
    """Only what every source has scanned is skipped: here, ten days pass for the payloads of one of two sources."""
    await claim(store, "evt_1")
    set_age(database, "evt_1", 20, "processed")
    github = Horizon("github", 60 * DAY, 3600)
    prune_loop = PruneLoop(store, [Horizon("stripe", 60 * DAY, 25 * DAY), github])
    await prune_loop.prune_once()
    assert events_with_payload(rows) == ["evt_1"]
    prune_loop.horizons = [Horizon("stripe", 60 * DAY, 15 * DAY), github]
    await prune_loop.prune_once()
    assert events_with_payload(rows) == []
