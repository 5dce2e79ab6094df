"""A user's project in a folder, and pytest as a user runs it there."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

INI = "oncehook_inbox = hooks:inbox"


def run_pytest(folder: Path, *options: str, ini: str | None = INI) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder. `ini` is written to pytest.ini, unless it is None."""
    if ini is not None:
        (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = .\nfilterwarnings = error\n{ini}\n")
    load = () if _is_installed() else ("-p", "pytest_oncehook")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *load, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def _is_installed() -> bool:
    """Return whether pytest finds the fixtures by their entry point, which may be newer than the installation."""
    return bool(metadata.entry_points(group="pytest11", name="oncehook"))
