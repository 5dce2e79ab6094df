"""`oncehook prune`: its table, its JSON, sources that are no longer configured, and its exit codes."""

from dataclasses import replace
from pathlib import Path

import pytest

from oncehook.cli.prune import PrunedSource
from oncehook.config.settings import Horizon
from oncehook.runtime import pruning
from tests.support.command_line import Run
from tests.support.events import Rows

RECEIPTS = "SELECT source, count(*) FROM webhook_receipts GROUP BY source ORDER BY source"


@pytest.fixture
def aged(filled: list[int], rows: Rows) -> None:
    """All stored events are processed, and were received in the year 2020."""
    rows("UPDATE webhook_receipts SET status = 'processed', received_at = '2020-01-01T00:00:00.000000Z'")


sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@sqlite
def test_a_dry_run_counts_and_deletes_nothing(run: Run, aged: None, rows: Rows) -> None:
    before = rows(RECEIPTS)
    ran = run("prune", "--dry-run")
    assert ran.code == 0 and ran.out.endswith("dry run: nothing was deleted\n")
    assert ran.out.splitlines()[1].split() == ["stripe", "30d", "30d", "4", "4"]
    assert rows(RECEIPTS) == before


@sqlite
def test_prune_deletes_old_receipts_of_configured_sources(run: Run, aged: None, rows: Rows) -> None:
    ran = run("prune")
    assert ran.code == 0 and rows(RECEIPTS) == [("live", 1)]
    assert "skipped: live (not configured: name your app, or add --removed-sources)" in ran.error
    assert run("prune").out.endswith("nothing to delete\n")


@sqlite
def test_removed_sources_are_pruned_on_request(run: Run, aged: None, rows: Rows) -> None:
    lines = run("prune", "--removed-sources", "--json").lines
    assert [(line["source"], line["receipts"]) for line in lines] == [("stripe", 4), ("live", 1)]
    assert rows(RECEIPTS) == []


@sqlite
def test_exit_code_is_1_if_another_process_is_pruning(run: Run, hooks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def locked(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(pruning, "prune", locked)
    ran = run("prune")
    assert (ran.code, ran.error) == (1, "oncehook: another process is pruning\n")


def test_json_of_a_source_has_its_window_and_retention() -> None:
    source = PrunedSource("stripe", 2, 1, Horizon("stripe", 86400.0, 3600.0))
    assert source.as_json() == {
        "source": "stripe",
        "receipts": 2,
        "payloads": 1,
        "dedupe_window": "1d",
        "payload_retention": "1h",
    }
    assert replace(source, horizon=None).as_json()["dedupe_window"] is None
