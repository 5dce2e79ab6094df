"""`oncehook replay`: which events it replays, its confirmation, its dry run and its exit codes."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from oncehook.cli import replay as replay_command
from tests.support.command_line import Run
from tests.support.events import EVENT_KEYS, Rows
from tests.support.work import receipt_states


def test_receipts_are_replayed_by_number_and_by_event_id(run: Run, filled: list[int], rows: Rows) -> None:
    ran = run("replay", str(filled[0]), "evt_4", "evt_4", "--actor", "ann")
    assert (ran.code, ran.error) == (0, "")
    assert ran.out == "replayed 2 events (1 failed, 1 processed)\n"
    statuses = receipt_states(rows)
    assert statuses["evt_1"] == statuses["evt_4"] == ("received", 1) and statuses["evt_2"] == ("failed", 0)
    ((actor, action, detail),) = rows("SELECT actor, action, detail FROM webhook_audit")
    assert (actor, action) == ("ann", "replay")
    assert json.loads(detail)["receipts"] == sorted([filled[0], filled[3]])


def test_waiting_and_pruned_events_are_skipped_with_exit_code_1(run: Run, filled: list[int], rows: Rows) -> None:
    ran = run("replay", "evt_5")
    assert (ran.code, ran.out, ran.error) == (1, "", "skipped: 1 (received)\n")
    rows("DELETE FROM webhook_payloads")
    ran = run("replay", "evt_4", "--json")
    assert ran.code == 1
    assert ran.lines == [{"matched": 1, "replayed": 0, "from": {}, "left": {"payload pruned": 1}}]
    assert receipt_states(rows)["evt_4"] == ("processed", 0)


def test_an_unknown_receipt_stops_the_whole_replay(run: Run, filled: list[int], rows: Rows) -> None:
    before = receipt_states(rows)
    ran = run("replay", "evt_1", "evt_99")
    assert (ran.code, ran.out) == (1, "") and "there is no event evt_99" in ran.error
    assert receipt_states(rows) == before


def test_a_replay_of_several_events_needs_yes_without_a_terminal(run: Run, filled: list[int], rows: Rows) -> None:
    before = receipt_states(rows)
    ran = run("replay", "--failed")
    assert ran.code == 2 and "3 events (3 failed)" in ran.error and "--yes" in ran.error
    assert receipt_states(rows) == before
    ran = run("replay", "--failed", "--yes")
    assert (ran.code, ran.out) == (0, "replayed 3 events (3 failed)\n")
    assert [status for status, _ in receipt_states(rows).values()] == ["received"] * 3 + ["processed", "received"]
    assert run("replay", "--failed", "--yes").code == 1


def test_a_replay_of_several_events_asks_for_confirmation_on_a_terminal(
    run: Run, filled: list[int], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def confirm(question: str, **options: Any) -> bool:
        questions.append(question)
        if len(questions) == 1:
            raise click.exceptions.Abort
        return True

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", confirm)
    assert run("replay", "--source", "stripe").code == 130
    assert receipt_states(rows)["evt_1"] == ("failed", 0)
    assert run("replay", "--source", "stripe").code == 0
    assert questions == ["Replay 4 events (3 failed, 1 processed)?"] * 2
    assert receipt_states(rows)["evt_1"] == ("received", 1)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--failed --type invoice.paid", {"evt_1", "evt_2"}),
        ("--handled-by v2", {"evt_4"}),
        ("--status processed --since 1h", {"evt_4"}),
        ("--source stripe --until 2099-01-01 --type *.voided", {"evt_3"}),
        ("--search evt_2", {"evt_2"}),
        ("--object in_1 --failed", {"evt_1", "evt_2", "evt_3"}),
    ],
)
def test_options_select_events_and_a_dry_run_only_lists_them(
    run: Run, filled: list[int], rows: Rows, options: str, expected: set[str]
) -> None:
    before = rows("SELECT * FROM webhook_receipts ORDER BY id")
    listed = run("replay", *options.split(), "--dry-run", "--json")
    assert listed.code == 0 and {line["event_id"] for line in listed.lines} == expected
    assert all(sorted(line) == sorted(EVENT_KEYS) for line in listed.lines)
    table = run("replay", *options.split(), "--dry-run")
    assert table.code == 0 and all(event_id in table.out for event_id in expected)
    assert "nothing was changed" in table.out
    assert rows("SELECT * FROM webhook_receipts ORDER BY id") == before
    assert rows("SELECT * FROM webhook_audit") == []
    assert run("replay", *options.split(), "--yes").code == 0
    assert {event_id for event_id, (_, replays) in receipt_states(rows).items() if replays} == expected


def test_exit_code_is_1_if_no_event_matches(run: Run, filled: list[int]) -> None:
    for options in (["--source", "unknown"], ["--handled-by", "v0"], ["--failed", "--until", "2020-01-01"]):
        ran = run("replay", *options)
        assert (ran.code, ran.out, ran.error) == (1, "", "no event matches\n")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "arguments",
    [[], ["1", "--failed"], ["--failed", "--status", "ignored"], ["--status", "processing"], ["1", "--rehearse"]],
    ids=lambda arguments: " ".join(arguments) or "nothing",
)
def test_contradictory_options_are_rejected_with_exit_code_2(run: Run, hooks: Path, arguments: list[str]) -> None:
    ran = run("replay", *arguments)
    assert ran.code == 2 and ran.out == ""


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_dry_run_of_many_events_prints_the_kinds_and_the_first_events(
    run: Run, filled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_command, "MAX_EXAMPLES", 2)
    printed = run("replay", "--source", "stripe", "--dry-run").out
    kinds, examples = printed.split("\nThe first 2 of 4 (--json lists all):\n")
    assert [line.split()[:3] for line in kinds.splitlines()[1:]] == [
        ["2", "stripe", "invoice.paid"],
        ["1", "stripe", "invoice.voided"],
        ["1", "stripe", "invoice.paid"],
    ]
    assert "evt_2" in examples and "evt_3" not in examples
