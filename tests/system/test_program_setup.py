"""The step before the tests: it waits for apt's lock, and says what is missing where it cannot install."""

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.support import program_setup
from tests.support.program_setup import AptError, prepare, run_apt
from tests.support.programs import PROGRAMS, Program

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


@pytest.fixture
def only_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests need one program, which is nowhere. The user is not root."""
    monkeypatch.setattr(program_setup, "PROGRAMS", {"absent": Program("absent", "some-package", lambda: None, "it")})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def fake_apt(folder: Path, *, busy: int, message: str) -> None:
    script = folder / "apt-get"
    script.write_text(FAKE_APT.format(python=sys.executable, folder=str(folder), busy=busy, message=message))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def calls(apt: Path) -> list[str]:
    file = apt / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_apt_is_run_again_when_another_process_holds_its_lock(apt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_apt("install", "-y", "pgbouncer", patience=30)
    assert calls(apt) == ["install -y pgbouncer"] * 2
    assert "Another process holds apt's lock" in capsys.readouterr().err


def test_waiting_for_the_lock_of_apt_ends(apt: Path) -> None:
    with pytest.raises(AptError, match="Could not get lock"):
        run_apt("update", patience=0)


def test_other_failures_of_apt_are_reported_at_once(apt: Path) -> None:
    fake_apt(apt, busy=9, message="Unable to locate package pgbouncer")
    with pytest.raises(AptError, match="Unable to locate package"):
        run_apt("install", "pgbouncer", patience=600)
    assert len(calls(apt)) == 1


@pytest.mark.usefixtures("only_absent")
def test_missing_program_is_announced_and_not_installed_without_root(
    apt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    prepare()
    output = capsys.readouterr()
    assert "absent          MISSING: its tests are skipped" in output.out
    assert "apt-get install some-package" in output.err and calls(apt) == []


@pytest.mark.usefixtures("only_absent")
def test_missing_program_is_an_error_before_any_test_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match=r"The tests need programs.*apt-get install some-package"):
        prepare()


def test_nothing_is_installed_when_no_program_is_missing(
    apt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Program("here", "some-package", lambda: Path(sys.executable), "it")
    monkeypatch.setattr(program_setup, "PROGRAMS", {"here": here})
    prepare()
    assert calls(apt) == [] and f"here            {sys.executable}" in capsys.readouterr().out


def test_each_program_names_its_package() -> None:
    assert all(program.package and program.purpose for program in PROGRAMS.values())
