"""The markers of tests: which kind a test is, and that unit tests start no server."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.markers import is_unit_file


@pytest.mark.parametrize(
    ("folder", "source", "expected"),
    [
        ("model", "import json\n", True),
        ("model", "import subprocess\n", False),
        ("model", "from tests.support.serve import served\n", False),
        ("model", 'inbox = Inbox("sqlite://")\n', False),
        ("model", "pytestmark = pytest.mark.system\n", False),
        ("faults", "import json\n", False),
        ("browser", "import json\n", False),
    ],
)
def test_file_has_unit_tests_unless_it_starts_something(
    tmp_path: Path, folder: str, source: str, expected: bool
) -> None:
    file = tmp_path / "tests" / folder / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert is_unit_file(file) is expected


def test_unit_tests_run_without_a_database_server() -> None:
    """No server program can be found in this run."""
    code = (
        "import sys, pytest\n"
        "from tests.support import programs\n"
        "programs.PROGRAMS.clear()\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-m', 'unit', 'tests/model', 'tests/config']))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
