"""`oncehook prune` and `oncehook forget`: exit codes, output, and what is left."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oncehook.cli import main
from oncehook.config.settings import Settings
from oncehook.store import make_store
from tests.support.ages import set_age
from tests.support.events import Rows
from tests.support.retention import (
    events_with_payload,
    stored_events,
)
from tests.support.work import claim


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_folder: Path, database: str) -> Any:
    """Run a command as its entry point does: its exit code, and what it said on both."""
    (in_folder / "oncehook.toml").write_text(
        f'database = "{database}"\n[sources.stripe]\nsecrets = ["env:NOT_NEEDED_TO_PRUNE"]\n'
    )
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["oncehook", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int) and "Traceback" not in said.err
        return ended.value.code, said.out, said.err

    return call


@pytest.fixture
def aged(database: str) -> None:
    """An old processed event, an old dead letter, a young one, and an old one of a source that is gone."""

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


EVERYTHING = ["evt_dead", "evt_gone", "evt_old", "evt_young"]


def test_prune_dry_run_lists_prunable_rows_and_deletes_nothing(run: Any, aged: None, rows: Rows) -> None:
    code, out, err = run("prune", "--dry-run")
    assert code == 0 and "nothing was deleted" in out and "gone" in err
    code, out, _ = run("prune", "--dry-run", "--json")
    assert (code, [json.loads(line) for line in out.splitlines()]) == (
        0,
        [{"source": "stripe", "receipts": 1, "payloads": 1, "dedupe_window": "30d", "payload_retention": "30d"}],
    )
    assert stored_events(rows) == events_with_payload(rows) == EVERYTHING


def test_prune_command_deletes_old_rows_and_removed_sources_on_request(run: Any, aged: None, rows: Rows) -> None:
    code, out, err = run("prune")
    assert code == 0 and "skipped: gone" in err
    assert stored_events(rows) == ["evt_dead", "evt_gone", "evt_young"]
    assert run("prune", "--removed-sources")[0] == 0
    assert stored_events(rows) == ["evt_dead", "evt_young"]
    code, out, _ = run("prune", "--removed-sources")
    assert code == 0 and "nothing to delete" in out


def test_prune_command_rejects_a_too_short_window(run: Any, aged: None, rows: Rows, in_folder: Path) -> None:
    file = in_folder / "oncehook.toml"
    file.write_text(file.read_text() + 'dedupe_window = "1d"\n')
    code, _, err = run("prune")
    assert code == 2 and "sources.stripe.dedupe_window is 1d" in err and "minimum is 8d" in err
    assert stored_events(rows) == EVERYTHING


def test_forget_command_erases_by_object_or_address_after_confirmation(run: Any, aged: None, rows: Rows) -> None:
    assert run("forget", "--object", "in_0", "--yes")[0] == 1
    assert run("forget", "--object", "in_9")[0] == 2  # nobody is there to be asked
    assert run("forget")[0] == run("forget", "--object", "x", "--address", "y")[0] == 2
    assert events_with_payload(rows) == EVERYTHING
    code, out, _ = run("forget", "--object", "in_9", "--yes")
    assert code == 0 and "erased 1 payload;" in out
    assert events_with_payload(rows) == ["evt_dead", "evt_old", "evt_young"]
    assert stored_events(rows) == EVERYTHING
    assert run("forget", "--address", "EVT_OLD", "--yes")[0] == 0
    assert events_with_payload(rows) == ["evt_dead", "evt_young"]
    ((actor,), _) = rows("SELECT actor FROM webhook_audit ORDER BY id")
    assert "@" in actor
