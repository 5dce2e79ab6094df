"""The progress bar of a replay, and waiting for its outcomes."""

import sys

import pytest

from oncehook.cli import progress as replay_progress
from oncehook.cli.progress import outcomes_text, replay_bar, status_line
from oncehook.operations.replay import Outcomes, Replayed
from tests.support.command_line import Run


def test_a_long_replay_shows_a_bar_on_a_terminal(run: Run, filled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_progress, "BATCH", 1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    ran = run("replay", "--failed", "--yes")
    assert ran.code == 0 and "replaying" in ran.error and "3/3" in ran.error


def test_outcomes_are_described_in_one_line() -> None:
    outcomes = Outcomes(handled=5390, failed=4, waiting=6)
    assert outcomes_text(outcomes) == "5,390 handled, 4 failed again, 6 still waiting"


def test_without_a_terminal_there_is_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with replay_bar(Replayed(), 50.0) as advance:
        advance(Replayed())
    assert capfd.readouterr() == ("", "")


def test_a_status_line_is_shown_only_on_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with status_line("pruning") as show:
        show("3 receipts")
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with status_line("pruning") as show:
        show("3 receipts")
    assert "pruning" in capfd.readouterr().err
