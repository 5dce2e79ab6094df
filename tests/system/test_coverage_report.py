"""`make coverage`: the percentage of each package, and a failure below its goal."""

import json
from pathlib import Path

import pytest

from tests.support.coverage_report import GOALS, main


def write_report(folder: Path, covered: dict[str, int]) -> str:
    """A report in which each module has 80 lines and 20 branches, and this many of the lines ran."""
    files = {
        f"src/oncehook/{module}": {
            "summary": {"num_statements": 80, "covered_lines": lines, "num_branches": 20, "covered_branches": 20}
        }
        for module, lines in covered.items()
    }
    file = folder / "coverage.json"
    file.write_text(json.dumps({"files": files}))
    return str(file)


def full() -> dict[str, int]:
    return {name if name.endswith(".py") else f"{name}/module.py": 80 for name in GOALS}


def test_report_shows_each_package_and_succeeds_at_its_goal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    covered = full() | {"worker/module.py": 75, "cli/module.py": 0}
    assert main(write_report(tmp_path, covered)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["worker", "95.0", "%", "goal", "95", "%"] for line in lines)
    assert any(line.split() == ["cli", "20.0", "%"] for line in lines), "a package without a goal is shown too"


@pytest.mark.parametrize("module", ["worker/module.py", "providers/verify.py"])
def test_package_below_its_goal_fails_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    assert main(write_report(tmp_path, full() | {module: 74})) == 1
    assert "MISSED" in capsys.readouterr().out


def test_package_that_was_not_measured_fails_the_report(tmp_path: Path) -> None:
    covered = full()
    del covered["effects/module.py"]
    assert main(write_report(tmp_path, covered)) == 1
