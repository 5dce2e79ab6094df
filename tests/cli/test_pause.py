"""`oncehook pause`: its messages, its JSON and its exit codes."""

from pathlib import Path

import pytest

from oncehook.cli.pause import pause_text
from tests.support.command_line import Run
from tests.support.events import Rows


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_pause_prints_the_end_and_the_reason(run: Run, hooks: Path, rows: Rows) -> None:
    ran = run("pause", "stripe", "--for", "2h", "--reason", "migration", "--actor", "ann")
    assert ran.code == 0 and ran.out.startswith("stripe is paused until 20") and ran.out.endswith("Z (migration)\n")
    assert rows("SELECT actor, action FROM webhook_audit") == [("ann", "pause")]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_second_pause_exits_1(run: Run, hooks: Path) -> None:
    assert run("pause", "stripe").out == "stripe is paused\n"
    ran = run("pause", "stripe")
    assert (ran.code, ran.error) == (1, "stripe is already paused\n")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_json_says_whether_the_source_changed(run: Run, hooks: Path) -> None:
    first, second = (run("pause", "stripe", "--json").lines for _ in range(2))
    assert first == [{"source": "stripe", "paused": True, "changed": True, "ends_at": None}]
    assert second[0]["changed"] is False


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_unknown_source_is_rejected(run: Run, hooks: Path) -> None:
    ran = run("pause", "strip")
    assert ran.code == 2 and "there is no source strip" in ran.error


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_consumer_is_paused_and_resumed(run: Run, hooks: Path, rows: Rows) -> None:
    rows(
        "INSERT INTO webhook_consumers (name, source, patterns, settings, revision) "
        "VALUES ('analytics', 'stripe', '[\"*\"]', '{}', 1)"
    )
    assert run("pause", "--consumer", "analytics", "--reason", "slow").out == "analytics is paused (slow)\n"
    assert rows("SELECT source, consumer FROM webhook_pauses") == [("", "analytics")]
    assert run("pause", "--consumer", "analytics", "--json").lines == [
        {"consumer": "analytics", "paused": True, "changed": False, "ends_at": None}
    ]
    assert run("resume", "--consumer", "analytics").out == "analytics is resumed\n"
    ran = run("pause", "--consumer", "analitics")
    assert ran.code == 2 and "there is no consumer analitics: did you mean analytics?" in ran.error


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("arguments", [[], ["stripe", "--consumer", "main"]])
def test_either_a_source_or_a_consumer_is_passed(run: Run, hooks: Path, arguments: list[str]) -> None:
    for command in ("pause", "resume"):
        ran = run(command, *arguments)
        assert ran.code == 2 and "pass either a source or --consumer NAME" in ran.error


def test_the_description_of_a_pause_escapes_the_reason() -> None:
    assert pause_text("2026-11-16T15:00:00.000000Z", "a\nb") == r" until 2026-11-16T15:00:00Z (a\nb)"
    assert pause_text(None, None) == ""
