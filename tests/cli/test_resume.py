"""`oncehook resume`: its messages, its JSON and its exit codes."""

from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.events import Rows

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def test_resume_ends_a_pause_and_is_recorded(run: Run, hooks: Path, rows: Rows) -> None:
    run("pause", "stripe")
    ran = run("resume", "stripe", "--actor", "ann")
    assert (ran.code, ran.out) == (0, "stripe is resumed\n")
    assert ("ann", "resume") in rows("SELECT actor, action FROM webhook_audit")
    assert "has been paused" not in run("stats").out


def test_resume_of_a_source_that_is_not_paused_exits_1(run: Run, hooks: Path) -> None:
    ran = run("resume", "stripe")
    assert (ran.code, ran.out, ran.error) == (1, "", "stripe is not paused\n")


def test_json_says_whether_the_source_changed(run: Run, hooks: Path) -> None:
    run("pause", "stripe")
    first, second = (run("resume", "stripe", "--json").lines for _ in range(2))
    assert first == [{"source": "stripe", "paused": False, "changed": True, "ends_at": None}]
    assert second[0]["changed"] is False
