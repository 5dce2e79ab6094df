"""`oncehook alerts`: rules and incidents in the table and as JSON, and test messages to the targets."""

from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.serve import write_config

TARGETS = """
[alerts.targets.file]
command = ["tee", "message.json"]
[alerts.targets.broken]
command = ["false"]
"""

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
def targets(in_folder: Path, database: str) -> None:
    """Two targets: one that works and one that fails."""
    config = write_config(in_folder, database)
    config.write_text(config.read_text() + TARGETS)


def test_every_rule_is_listed_with_its_limit(run: Run, config: Path) -> None:
    ran = run("alerts")
    first, _, head, *rules = ran.out.splitlines()
    assert (ran.code, first) == (0, "there are no open incidents")
    assert head.split() == ["rule", "now", "threshold", "source", "state"]
    assert [rule.split()[0] for rule in rules] == [line["rule"] for line in run("alerts", "--json").lines]
    assert next(rule for rule in rules if rule.startswith("silent")).split()[-1] == "off"


def test_dead_letters_are_reported_with_a_remedy(run: Run, filled: list[int]) -> None:
    out = run("alerts").out
    assert "stripe has dead letters: 3 (threshold 0)." in out and "\n→ Run `oncehook dead`" in out


def test_a_test_message_is_sent_to_one_target(run: Run, targets: None, in_folder: Path) -> None:
    ran = run("alerts", "test", "file")
    assert (ran.code, ran.out) == (0, "file  command tee  sent: exited with 0\n")
    assert "test" in (in_folder / "message.json").read_text()


def test_exit_code_is_1_if_a_target_fails(run: Run, targets: None) -> None:
    ran = run("alerts", "test")
    assert ran.code == 1 and "file  command tee  sent: " in ran.out and "broken  command false  failed: " in ran.out


def test_an_unknown_target_is_reported_with_the_known_ones(run: Run, targets: None) -> None:
    ran = run("alerts", "test", "fil")
    assert ran.code == 2 and "there is no [alerts.targets.fil] in the configuration" in ran.error
    assert "the targets are: file, broken" in ran.error


def test_without_targets_the_test_says_how_to_add_one(run: Run, config: Path) -> None:
    ran = run("alerts", "test")
    assert ran.code == 1 and "add one as [alerts.targets.NAME] in oncehook.toml" in ran.error
