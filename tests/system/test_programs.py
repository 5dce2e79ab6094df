"""The set-up step before the tests: it waits for apt's lock, and says what to install where it cannot install."""

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.support import programs

FAKE_APT = """#!{python}
import pathlib, sys
folder = pathlib.Path({folder!r})
calls = folder / "calls"
number = len(calls.read_text().splitlines()) if calls.exists() else 0
with calls.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if number < {busy}:
    sys.exit(print("E: {message}", file=sys.stderr) or 100)
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get that records its calls in `calls`; its first call finds the lock taken."""
    fake_apt(tmp_path, busy=1, message="Could not get lock /var/lib/dpkg/lock-frontend")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def fake_apt(folder: Path, *, busy: int, message: str) -> None:
    script = folder / "apt-get"
    script.write_text(FAKE_APT.format(python=sys.executable, folder=str(folder), busy=busy, message=message))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_apt_is_run_again_when_another_process_holds_its_lock(apt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs.run_apt("install", "-y", "pgbouncer", patience=30)
    assert (apt / "calls").read_text().splitlines() == ["install -y pgbouncer"] * 2
    assert "Another process holds apt's lock" in capsys.readouterr().err


def test_waiting_for_the_lock_of_apt_ends(apt: Path) -> None:
    with pytest.raises(SystemExit, match="Could not get lock"):
        programs.run_apt("update", patience=0)


def test_other_failures_of_apt_are_reported_at_once(apt: Path) -> None:
    fake_apt(apt, busy=9, message="Unable to locate package pgbouncer")
    with pytest.raises(SystemExit, match="Unable to locate package"):
        programs.run_apt("install", "pgbouncer", patience=600)
    assert len((apt / "calls").read_text().splitlines()) == 1


def test_missing_programs_are_named_with_their_packages_where_they_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = programs.Program("gone", "some-package", lambda: None, "a program for this test")
    monkeypatch.setitem(programs.PROGRAMS, "gone", gone)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"a program for this test.*apt-get install some-package"):
        programs.install_missing(["gone"])
    with pytest.raises(SystemExit, match="a program for this test"):
        programs.find("gone")
