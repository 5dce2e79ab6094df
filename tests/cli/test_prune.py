"""`oncehook prune` on both databases: old rows are deleted, dead letters and removed sources stay."""

import asyncio
from pathlib import Path

import pytest

from oncehook.config.settings import Settings
from oncehook.store import make_store
from tests.support.ages import set_age
from tests.support.command_line import Run
from tests.support.events import Rows
from tests.support.retention import events_with_payload, stored_events
from tests.support.work import claim

EVERYTHING = ["evt_dead", "evt_gone", "evt_old", "evt_young"]


@pytest.fixture
def aged(database: str, in_folder: Path) -> None:
    """An old processed event, an old dead letter, a young event, and an old event of a source that was removed."""
    secrets = 'secrets = ["env:NOT_NEEDED_TO_PRUNE"]'
    (in_folder / "oncehook.toml").write_text(f'database = "{database}"\n[sources.stripe]\n{secrets}\n')

    async def fill() -> None:
        store = make_store(Settings(database=database))
        await store.open()
        await claim(store, "evt_old", "evt_dead", "evt_young")
        await claim(store, "evt_gone", source="gone", object_id="in_9")
        await store.close()

    asyncio.run(fill())
    set_age(database, "evt_old", 40, "processed")
    set_age(database, "evt_dead", 40, "failed")
    set_age(database, "evt_young", 3, "processed")
    set_age(database, "evt_gone", 40, "processed")


def test_prune_dry_run_lists_prunable_rows_and_deletes_nothing(run: Run, aged: None, rows: Rows) -> None:
    shown = run("prune", "--dry-run")
    assert shown.code == 0 and "nothing was deleted" in shown.out and "gone" in shown.error
    listed = run("prune", "--dry-run", "--json")
    assert (listed.code, listed.lines) == (
        0,
        [{"source": "stripe", "receipts": 1, "payloads": 1, "dedupe_window": "30d", "payload_retention": "30d"}],
    )
    assert stored_events(rows) == events_with_payload(rows) == EVERYTHING


def test_prune_command_deletes_old_rows_and_removed_sources_on_request(run: Run, aged: None, rows: Rows) -> None:
    pruned = run("prune")
    assert pruned.code == 0 and "skipped: gone" in pruned.error
    assert stored_events(rows) == ["evt_dead", "evt_gone", "evt_young"]
    assert run("prune", "--removed-sources").code == 0
    assert stored_events(rows) == ["evt_dead", "evt_young"]
    again = run("prune", "--removed-sources")
    assert again.code == 0 and "nothing to delete" in again.out


def test_prune_command_rejects_a_too_short_window(run: Run, aged: None, rows: Rows, in_folder: Path) -> None:
    file = in_folder / "oncehook.toml"
    file.write_text(file.read_text() + 'dedupe_window = "1d"\n')
    rejected = run("prune")
    assert rejected.code == 2, "a window that is shorter than the provider retries is a usage error"
    assert "sources.stripe.dedupe_window is 1d" in rejected.error and "minimum is 8d" in rejected.error
    assert stored_events(rows) == EVERYTHING
