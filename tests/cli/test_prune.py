"""`oncehook prune`: its table, its JSON, removed sources, and its exit codes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.cli.prune import PrunedSource
from oncehook.config.settings import Horizon
from tests.support.ages import set_age
from tests.support.command_line import Run
from tests.support.events import STRIPE_SECRET, Rows, make_claim
from tests.support.retention import events_with_payload, stored_events
from tests.support.work import claim_and_settle

ALL_EVENTS = ["evt_dead", "evt_gone", "evt_old", "evt_young"]


@pytest.fixture
def aged(config: Path, make_inbox: Callable[..., Inbox], database: str) -> Path:
    """An old and a young processed event, an old dead letter, and an old event of a removed source.

    The secret of the source is not set: pruning does not need it.
    """
    config.write_text(config.read_text().replace(STRIPE_SECRET, "env:NOT_NEEDED_TO_PRUNE"))
    claim_and_settle(make_inbox, *(make_claim(event_id) for event_id in ("evt_dead", "evt_old", "evt_young")))
    claim_and_settle(make_inbox, make_claim("evt_gone", source="gone"))
    set_age(database, "evt_old", 40, "processed")
    set_age(database, "evt_dead", 40, "failed")
    set_age(database, "evt_young", 3, "processed")
    set_age(database, "evt_gone", 40, "processed")
    return config


def test_a_dry_run_counts_and_deletes_nothing(run: Run, aged: Path, rows: Rows) -> None:
    ran = run("prune", "--dry-run")
    assert ran.code == 0 and ran.out.endswith("dry run: nothing was deleted\n")
    assert ran.out.splitlines()[1].split() == ["stripe", "30d", "30d", "1", "1"]
    assert run("prune", "--dry-run", "--json").lines == [
        {"source": "stripe", "receipts": 1, "payloads": 1, "dedupe_window": "30d", "payload_retention": "30d"}
    ]
    assert stored_events(rows) == events_with_payload(rows) == ALL_EVENTS


def test_prune_deletes_old_processed_events_and_removed_sources_on_request(run: Run, aged: Path, rows: Rows) -> None:
    ran = run("prune")
    assert ran.code == 0 and "skipped: gone (not configured: pass your app, or add --removed-sources)" in ran.error
    assert stored_events(rows) == ["evt_dead", "evt_gone", "evt_young"]
    assert run("prune", "--removed-sources").code == 0
    assert stored_events(rows) == ["evt_dead", "evt_young"]
    again = run("prune", "--removed-sources")
    assert again.code == 0 and again.out.endswith("nothing to delete\n")


def test_event_of_a_removed_source_stays_as_long_as_any_provider_could_retry_it(
    run: Run, aged: Path, database: str, rows: Rows
) -> None:
    """Its provider is not known any more. The longest retries of a built-in provider take 30 days."""
    set_age(database, "evt_gone", 33)
    planned = run("prune", "--removed-sources", "--dry-run", "--json").lines
    expected = {"receipts": 0, "payloads": 1, "dedupe_window": "35d", "payload_retention": "30d"}
    assert planned[1] == {"source": "gone", **expected}
    assert run("prune", "--removed-sources").code == 0
    assert stored_events(rows) == ["evt_dead", "evt_gone", "evt_young"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_longer_window_of_the_inbox_also_holds_for_removed_sources(run: Run, aged: Path) -> None:
    aged.write_text('dedupe_window = "90d"\n' + aged.read_text())
    (gone,) = [row for row in run("prune", "--removed-sources", "--dry-run", "--json").lines if row["source"] == "gone"]
    assert (gone["receipts"], gone["dedupe_window"]) == (0, "90d")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_window_that_is_too_short_is_rejected(run: Run, aged: Path, rows: Rows) -> None:
    aged.write_text(aged.read_text() + 'dedupe_window = "1d"\n')
    ran = run("prune")
    assert ran.code == 2 and "sources.stripe.dedupe_window is 1d" in ran.error and "minimum is 8d" in ran.error
    assert stored_events(rows) == ALL_EVENTS


def test_exit_code_is_1_if_another_process_is_pruning(run: Run, aged: Path, rows: Rows) -> None:
    times = "'2026-01-01T00:00:00.000000Z', '2999-01-01T00:00:00.000000Z'"
    rows(f"INSERT INTO webhook_leaders VALUES ('prune', 1, 'other', {times}) RETURNING task")
    ran = run("prune")
    message = "another process is pruning: other. If that process is gone, try again after 2999-01-01T00:00:00Z"
    assert (ran.code, ran.error) == (1, f"oncehook: {message}\n")
    assert stored_events(rows) == ALL_EVENTS, "only the leader deletes"
    rows("UPDATE webhook_leaders SET expires_at = taken_at RETURNING task")
    assert run("prune").code == 0, "this process becomes the leader"


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
